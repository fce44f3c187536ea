"""How the ranks of a lane on several GPUs make pools that their peers can write to.

Ranks in processes of their own use torch's symmetric memory, without NVLink multicast; ranks that
are threads of one process share addresses.
"""

import os
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, _SymmetricMemory
from torch.distributed import _symmetric_memory as symmetric_memory

from raydix.errors import ConfigError
from raydix.kernels.device.symmetric_group import name_group
from raydix.moe.dispatch.store_group import StoreGroup
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.cuda_peers import CudaPeers, PeerAddresses
from raydix.runtime.tiers.gpu_pool import make_pools


def meet_on_cuda(
    shard: KvShard, num_pages: Sequence[int], device: torch.device, store: Store, name: str
) -> tuple[tuple[Tensor, ...], CudaPeers]:
    """Make this rank's pools and map those of all others, which all call this at once.

    The calling thread is on `device`. `name`: of this meeting, as torch knows the ranks in each
    process; it knows no name twice. Raises ConfigError if peers cannot be reached.
    """
    ranks = StoreGroup("pools", store, shard.rank, shard.num_ranks)
    places = ranks.swap((os.getpid(), device.index))
    pids = {pid for pid, _ in places}
    if len(pids) not in (1, shard.num_ranks):
        raise ConfigError(
            f"the {shard.num_ranks} ranks of a lane are in {len(pids)} processes; expected one "
            "each, or one for all of them."
        )
    for _, peer in places:
        _enable_access(device, torch.device("cuda", peer))

    memory: _PlainMemory | _MappedMemory
    memory = _PlainMemory(device) if len(pids) == 1 else _MappedMemory(shard, device, store, name)
    pools = make_pools(shard, num_pages, device, memory.make_pool)
    counters = memory.zeros((shard.num_ranks,), torch.int32)
    torch.cuda.synchronize(device)

    # In one order on all ranks, as mapping is something that they do together.
    shared = {group: pool for group, pool in enumerate(pools) if shard.is_shared(group)}
    found = [memory.map(ranks, tensor) for tensor in (*shared.values(), counters)]
    # Nobody writes to a peer that has not zeroed its memory yet.
    ranks.swap(None)
    peers = [
        PeerAddresses(
            pools={group: found[index][rank] for index, group in enumerate(shared)},
            counters=found[-1][rank],
        )
        for rank in range(shard.num_ranks)
        if rank != shard.rank
    ]
    return pools, CudaPeers(shard.rank, shared, counters, peers, memory)


class _PlainMemory:
    """Memory of one of several ranks in one process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def make_pool(self, group: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Make a KV group's pool that peers can write to, as `MakePool` says."""
        return self.zeros(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor that peers can write to."""
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def map(self, ranks: StoreGroup, tensor: Tensor) -> list[int]:
        """The addresses of this tensor of all ranks."""
        return ranks.swap(tensor.data_ptr())


class _MappedMemory:
    """Memory of a rank that has a process of its own, which sees the devices of all ranks."""

    def __init__(self, shard: KvShard, device: torch.device, store: Store, name: str) -> None:
        self._device = device
        self._name = name
        self._group = name_group(name, store, shard.rank, shard.num_ranks)
        self._mappings: list[object] = []
        """The mappings of peers' memory, which stays mapped as long as these live."""

    def make_pool(self, group: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Make a KV group's pool that peers can write to, as `MakePool` says."""
        return self.zeros(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor that peers can write to."""
        tensor: Tensor = symmetric_memory.empty(shape, dtype=dtype, device=self._device)
        return tensor.zero_()

    def map(self, ranks: StoreGroup, tensor: Tensor) -> list[int]:
        """The addresses of this tensor of all ranks."""
        mapping = _SymmetricMemory.rendezvous(tensor, self._name)
        self._mappings.append(mapping)
        return list(mapping.buffer_ptrs)


def _enable_access(device: torch.device, peer: torch.device) -> None:
    """Let kernels on this device write to a peer: torch allows it at the first copy."""
    if peer == device:
        return
    if not torch.cuda.can_device_access_peer(device, peer):
        raise ConfigError(
            f"{device} cannot write to the memory of {peer}; expected devices with peer access. "
            "Set parallel.tp to 1, or choose other devices."
        )
    torch.zeros(1, device=device).copy_(torch.zeros(1, device=peer))
    torch.zeros(1, device=peer).copy_(torch.zeros(1, device=device))
