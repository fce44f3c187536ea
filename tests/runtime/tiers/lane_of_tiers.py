"""The tiers of all ranks of a lane in one process, over one arena."""

from collections.abc import Callable
from typing import Any

import torch

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_peers import CpuPeers, PeerMemory
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
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
        *,
        arena: HostArena | None = None,
        options: RankOptions = lambda rank: {},
    ) -> None:
        self.arena = arena or HostArena.create(layout, 400_000, num_threads=1)
        self.ranks: list[Tiers] = []
        num_pages = [NUM_PAGES] * len(layout.groups)
        shards = [
            KvShard(layout=layout, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)
        ]
        peers = _peers(shards, num_pages) if num_ranks > 1 else [None]
        for rank, (shard, peer) in enumerate(zip(shards, peers, strict=True)):
            make_shared = None if peer is None else peer.own.make_pool
            self.ranks.append(
                Tiers(
                    "cpu",
                    shard,
                    HostArena.attach(self.arena.location),
                    make_pools(shard, num_pages, torch.device("cpu"), make_shared),
                    peers=peer,
                    **options(rank),
                )
            )

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


def _peers(shards: list[KvShard], num_pages: list[int]) -> list[CpuPeers]:
    """Each rank maps the pools of all others for itself, as ranks in several processes do."""
    memories = [PeerMemory.create(shard, num_pages) for shard in shards]
    return [
        CpuPeers(
            rank,
            [
                memory
                if peer == rank
                else PeerMemory.attach(memory.location, shards[peer], num_pages)
                for peer, memory in enumerate(memories)
            ],
        )
        for rank in range(len(shards))
    ]
