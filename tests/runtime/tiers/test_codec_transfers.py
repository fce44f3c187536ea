"""Transfer engines with a codec: the arena holds what the plain PyTorch twin says."""

import queue
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from raydix.ids import HostPageId
from raydix.kernels.pages.page_codec import Codec
from raydix.kernels.reference.page_codec import decode_pages, encode_pages
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers import cuda_transfers
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import TransferDone, TransferEngine

LAYOUT = KvLayout(
    page_size=4,
    dtype="bfloat16",
    dtype_bytes=2,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.WINDOW, layers=(1,), num_kv_heads=1, head_dim=16, window=8),
    ),
)
NUM_PAGES = 12
NO_COPIES = PageCopies()


class Tiers:
    """Random pools, an arena, and an engine between them."""

    def __init__(self, device: str, codec: Codec) -> None:
        torch.manual_seed(3)
        self.codec = codec
        self.layout = replace(LAYOUT, codec=codec)

        shard = KvShard(layout=self.layout)
        num_pages = [NUM_PAGES] * len(self.layout.groups)
        self.pools = make_pools(shard, num_pages, torch.device(device))
        for pool in self.pools:
            pool.normal_()

        self.arena = HostArena.create(self.layout, 40_000, num_threads=1)
        self.done: queue.SimpleQueue[TransferDone] = queue.SimpleQueue()
        self.errors: list[BaseException] = []

        make: Callable[..., TransferEngine] = CpuTransfers if device == "cpu" else CudaTransfers
        self.engine = make(
            shard, self.pools, self.arena, on_done=self.done.put, on_error=self.errors.append
        )

    def copies(self, pairs: list[tuple[int, int]], group: int = 0) -> PageCopies:
        host_pages = [host_page for _, host_page in pairs]
        return PageCopies(
            transfer_ids=int32_array([1] * len(pairs)),
            groups=int32_array([group] * len(pairs)),
            page_ids=int32_array(page for page, _ in pairs),
            host_page_ids=int32_array(host_pages),
            generations=int32_array(self.arena.generations[host_pages]),
        )

    def finish(self) -> TransferDone:
        self.engine.drain()
        return self.done.get()

    def encoded(self, page: int, group: int) -> bytes:
        """What the twin makes of a page."""
        return encode_pages(self.pools[group][page], self.codec).cpu().numpy().tobytes()

    def host_page(self, host_page: int, group: int) -> bytes:
        return bytes(self.arena.payload(HostPageId(host_page), group))

    def decoded(self, host_page: int, group: int) -> Tensor:
        """What the twin makes of a host page."""
        pool = self.pools[group]
        encoded = torch.tensor(list(self.host_page(host_page, group)), dtype=torch.uint8).view(
            pool.shape[1], -1
        )
        return decode_pages(encoded, self.codec, pool.shape[2:], pool.dtype)


@pytest.fixture(params=[Codec.INT8, Codec.FP8])
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


@pytest.fixture(
    params=[
        "cpu",
        pytest.param("cuda", marks=pytest.mark.gpu),
        pytest.param("cuda without Triton", marks=pytest.mark.gpu),
    ]
)
def tiers(
    request: pytest.FixtureRequest, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tiers]:
    if request.param == "cuda without Triton":
        monkeypatch.setattr(cuda_transfers, "_make_kernel_copies", lambda *_: None)
    made = Tiers(request.param.split()[0], codec)
    if isinstance(made.engine, CudaTransfers):
        made.engine.wait_registered()
    yield made
    made.engine.close()
    assert made.errors == []


@pytest.mark.parametrize("group", [0, 1])
def test_a_page_is_encoded_on_its_way_down_and_restored_on_its_way_up(
    tiers: Tiers, group: int
) -> None:
    slab = group * tiers.arena.geometry.pages_per_slab
    expected = {page: tiers.encoded(page, group) for page in (3, 5, 6)}
    others = tiers.pools[group][[0, 2, 4, 7, 8, 10, 11]].clone()

    tiers.engine.start(NO_COPIES, tiers.copies([(3, slab + 4), (5, slab + 2), (6, slab)], group))
    tiers.finish()
    tiers.engine.start(tiers.copies([(9, slab + 4), (1, slab + 2), (12, slab)], group), NO_COPIES)
    report = tiers.finish()

    assert {
        page: tiers.host_page(slab + place, group) for page, place in ((3, 4), (5, 2), (6, 0))
    } == expected
    for page, place in ((9, 4), (1, 2), (12, 0)):
        restored = tiers.pools[group][page].cpu()
        assert torch.equal(restored, tiers.decoded(slab + place, group))
    assert not torch.equal(tiers.pools[group][9], tiers.pools[group][3])
    assert torch.equal(tiers.pools[group][[0, 2, 4, 7, 8, 10, 11]], others)
    assert report.num_bytes == 3 * tiers.layout.payload_bytes(group)


def test_going_down_again_changes_nothing(tiers: Tiers) -> None:
    tiers.engine.start(NO_COPIES, tiers.copies([(3, 1)]))
    tiers.finish()
    tiers.engine.start(tiers.copies([(7, 1)]), NO_COPIES)
    tiers.finish()

    tiers.engine.start(NO_COPIES, tiers.copies([(7, 2)]))
    tiers.finish()

    assert tiers.host_page(2, 0) == tiers.host_page(1, 0)
