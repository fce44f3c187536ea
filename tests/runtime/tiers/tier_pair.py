"""Pools and an arena with known bytes, and an engine between them."""

import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydix.ids import HostPageId
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes, make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import TransferDone, TransferEngine

LAYOUT = KvLayout(
    page_size=4,
    dtype="float32",
    dtype_bytes=4,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.WINDOW, layers=(1,), num_kv_heads=1, head_dim=8, window=8),
        KvGroup(kind=GroupKind.LATENT, layers=(4, 5), num_kv_heads=1, head_dim=12),
    ),
)
NUM_PAGES = 12
NO_COPIES = PageCopies()


class Tiers:
    """Pools and an arena with known bytes, and an engine between them."""

    def __init__(
        self,
        device: str,
        shard: KvShard = KvShard(layout=LAYOUT),  # noqa: B008  frozen
        arena: HostArena | None = None,
        pools: tuple[torch.Tensor, ...] | None = None,
        **options: Any,
    ) -> None:
        layout = shard.layout
        self.device = torch.device(device)
        self.pools = pools or make_pools(shard, [NUM_PAGES] * len(layout.groups), self.device)
        self.arena = arena or HostArena.create(layout, 400_000, num_threads=1)
        self.random = np.random.default_rng(7)

        self.done: queue.SimpleQueue[TransferDone] = queue.SimpleQueue()
        self.errors: list[BaseException] = []

        make: Callable[..., TransferEngine] = CpuTransfers if device == "cpu" else CudaTransfers
        self.engine = make(
            shard,
            self.pools,
            self.arena,
            on_done=self.done.put,
            on_error=self.errors.append,
            **options,
        )

    def fill_host_page(self, host_page_id: int, group: int) -> bytes:
        payload = self.arena.payload(HostPageId(host_page_id), group)
        payload[:] = self.random.bytes(len(payload))
        return bytes(payload)

    def fill_page(self, page_id: int, group: int) -> bytes:
        pool = as_bytes(self.pools[group])
        data = self.random.integers(0, 256, pool.shape[1], dtype=np.uint8)
        pool[page_id] = torch.from_numpy(data).to(self.device)
        return data.tobytes()

    def page(self, page_id: int, group: int) -> bytes:
        return as_bytes(self.pools[group])[page_id].cpu().numpy().tobytes()

    def host_page(self, host_page_id: int, group: int) -> bytes:
        return bytes(self.arena.payload(HostPageId(host_page_id), group))

    def copies(self, transfer_id: int, pairs: list[tuple[int, int]], group: int = 0) -> PageCopies:
        host_pages = [host_page for _, host_page in pairs]
        return PageCopies(
            transfer_ids=int32_array([transfer_id] * len(pairs)),
            groups=int32_array([group] * len(pairs)),
            page_ids=int32_array(page for page, _ in pairs),
            host_page_ids=int32_array(host_pages),
            generations=int32_array(self.arena.generations[host_pages]),
        )

    def finish(self) -> list[TransferDone]:
        self.engine.drain()
        reports = []
        while not self.done.empty():
            reports.append(self.done.get())
        return reports


def joined(*parts: PageCopies) -> PageCopies:
    def column(name: str) -> NDArray[np.int32]:
        return int32_array(np.concatenate([getattr(part, name) for part in parts]))

    names = ("transfer_ids", "groups", "page_ids", "host_page_ids", "generations")
    return PageCopies(**{name: column(name) for name in names})
