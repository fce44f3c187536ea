"""How the ranks of a lane make their pools and find those of their peers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store

from raydix.errors import ConfigError
from raydix.moe.dispatch.store_group import StoreGroup
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.cpu_peers import CpuPeers, PeerLocation, PeerMemory
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.memory_region import MemoryRegion, make_region

if TYPE_CHECKING:
    from raydix.runtime.tiers.cuda_peers import CudaPeers

_MEETING_TIMEOUT = timedelta(minutes=10)
"""The longest wait for a rank that does not come, if the Supervisor does not notice first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPools:
    """A rank's pools, one per KV group, and what reaches those of its peers."""

    pools: tuple[Tensor, ...]
    regions: tuple[MemoryRegion, ...] = ()
    """The memory of the pools; none if ranks share pages, which is mapped by all of them."""
    cpu: CpuPeers | None = None
    cuda: "CudaPeers | None" = None
    """The peers of a CUDA device, or of the CPU; both None if no page is equal on several ranks."""


def make_peer_pools(
    shard: KvShard, num_pages: Sequence[int], device: torch.device, file: Path | None
) -> PeerPools:
    """Make the pools, as `make_pools` does; if ranks share pages, wait for all and map theirs.

    `file`: one that only these incarnations of the lane's ranks name, and for this alone, in a
    folder that nobody else may enter. On cuda the calling thread is on `device`. Raises ConfigError
    if peers cannot be reached.
    """
    if not any(shard.is_shared(group) for group in range(len(num_pages))):
        return _pools_in_regions(shard, num_pages, device)
    if file is None:
        raise ConfigError(
            f"rank {shard.rank} of {shard.num_ranks} has no file to meet the others by; expected "
            f"one in the engine's private folder."
        )

    store = FileStore(str(file), shard.num_ranks)
    store.set_timeout(_MEETING_TIMEOUT)
    if device.type == "cpu":
        return _meet_on_cpu(shard, num_pages, store)

    # Imported here: the kernels need Triton.
    from raydix.runtime.tiers.cuda_meeting import meet_on_cuda

    # A rank that sleeps and wakes meets the others once more, within the same process.
    pools, peers = meet_on_cuda(shard, num_pages, device, store, file.name)
    return PeerPools(pools=pools, cuda=peers)


def _pools_in_regions(shard: KvShard, num_pages: Sequence[int], device: torch.device) -> PeerPools:
    regions: list[MemoryRegion] = []

    def make_own(group: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        regions.append(make_region(dtype.itemsize * prod(shape), device))
        return regions[-1].bytes.zero_().view(dtype).view(shape)

    pools = make_pools(shard, num_pages, device, make_own=make_own)
    return PeerPools(pools=pools, regions=tuple(regions))


def _meet_on_cpu(shard: KvShard, num_pages: Sequence[int], store: Store) -> PeerPools:
    group = StoreGroup("pools", store, shard.rank, shard.num_ranks)
    own = PeerMemory.create(shard, num_pages)
    places = group.swap((own.location.pid, own.location.fd))
    memories = [
        own
        if rank == shard.rank
        else PeerMemory.attach(PeerLocation(pid=pid, fd=fd), shard, num_pages)
        for rank, (pid, fd) in enumerate(places)
    ]
    # Descriptors are needed until all have mapped what they stand for.
    group.swap(None)

    pools = make_pools(shard, num_pages, torch.device("cpu"), own.make_pool)
    for memory in memories:
        memory.close()
    return PeerPools(pools=pools, cpu=CpuPeers(shard.rank, memories))
