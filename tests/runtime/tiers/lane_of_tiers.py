"""The tiers of all ranks of a lane in one process, over one arena."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.peer_pools import make_peer_pools
from raydix.runtime.tiers.transfers import TransferDone
from tests.runtime.tiers.tier_pair import NO_COPIES, NUM_PAGES, Tiers

LATENT = KvLayout(
    page_size=4,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.LATENT, layers=(0, 1, 2), num_kv_heads=1, head_dim=12),),
)
FULL_AND_LATENT = KvLayout(
    page_size=4,
    dtype="float32",
    dtype_bytes=4,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0, 3), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.LATENT, layers=(1, 4), num_kv_heads=1, head_dim=12),
        KvGroup(kind=GroupKind.LATENT, layers=(2,), num_kv_heads=1, head_dim=8),
    ),
)
RankOptions = Callable[[int], dict[str, Any]]


class LaneOfTiers:
    """The tiers of all ranks, each with its own mapping of the arena and of its peers' pools."""

    def __init__(
        self,
        layout: KvLayout,
        num_ranks: int,
        folder: Path,
        device: str = "cpu",
        *,
        arena: HostArena | None = None,
        options: RankOptions = lambda rank: {},
        seed: int = 0,
    ) -> None:
        """`seed`: of the order of copies on the cpu, where a rank's is its own.

        `folder`: where the ranks may meet. Ranks on cuda share what devices there are.
        """
        self.arena = arena or HostArena.create(layout, 400_000, num_threads=1)
        shards = [
            KvShard(layout=layout, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)
        ]
        file = folder / f"meeting{len(list(folder.iterdir()))}"

        def make_rank(shard: KvShard) -> Tiers:
            place = torch.device(device)
            if place.type == "cuda":
                place = torch.device("cuda", shard.rank % torch.cuda.device_count())
                torch.cuda.set_device(place)
            made = make_peer_pools(shard, [NUM_PAGES] * len(layout.groups), place, file)
            arena = HostArena.attach(self.arena.location)
            order = {"seed": seed + shard.rank} if place.type == "cpu" else {}
            return Tiers(
                str(place),
                shard,
                arena,
                made.pools,
                peers=made.cpu or made.cuda,
                **order,
                **options(shard.rank),
            )

        # Each waits for the others.
        with ThreadPoolExecutor(num_ranks) as threads:
            self.ranks: list[Tiers] = list(threads.map(make_rank, shards))

    def host_page(self, group: int, index: int) -> int:
        """The id of a host page: each group has a slab of its own."""
        return self.arena.geometry.pages_per_slab * group + index

    def load(self, transfer_id: int, pairs: list[tuple[int, int]], group: int = 0) -> PageCopies:
        """A load of (page, index of a host page)."""
        places = [(page, self.host_page(group, index)) for page, index in pairs]
        return self.ranks[0].copies(transfer_id, places, group)

    def start(self, loads: PageCopies = NO_COPIES, backups: PageCopies = NO_COPIES) -> None:
        """Begin a plan's copies on all ranks."""
        for tiers in self.ranks:
            tiers.engine.start(loads, backups)

    def finish(self) -> list[list[TransferDone]]:
        """What each rank reports."""
        return [tiers.finish() for tiers in self.ranks]

    def close(self) -> None:
        """End all ranks, of which none has failed."""
        for tiers in self.ranks:
            tiers.engine.close()
        assert [tiers.errors for tiers in self.ranks] == [[] for _ in self.ranks]
