"""The pools of a lane's ranks in shared memory: each rank writes its share into those of its peers.

Pages that are equal on all ranks (`KvShard.is_shared`) lie in one memfd per rank, which the peers
map, so that threads of one process and processes of one host meet alike. Behind the pools the peers
leave marks that say how far they are. Whoever sees a mark sees the bytes written before it, because
x86-64 keeps stores in order.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.tiers.transfers import SharedLoad

Bytes = NDArray[np.uint8]

_LAYERS_BITS = 16
"""The bits of a mark that hold a number of layers: a mark is a transfer id, followed by the number
of its shared layers that have been written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLocation:
    """Where processes of this host find a rank's shared pools: descriptor `fd` of `pid`."""

    pid: int
    fd: int


class PeerMemory:
    """Owns: one mapping of one rank's shared pools and marks, and one file descriptor of it."""

    def __init__(self, fd: int, shard: KvShard, num_pages: Sequence[int]) -> None:
        """Map `fd`, which then belongs to this object, as pools of so many usable pages each."""
        self.fd = fd
        groups = [group for group in range(len(num_pages)) if shard.is_shared(group)]
        shapes = [(num_pages[group] + 1, shard.page_bytes(group)) for group in groups]
        starts = np.cumsum([0, *(_align(pages * page_bytes) for pages, page_bytes in shapes)])
        first_marks = np.cumsum([0, *(pages for pages, _ in shapes)])

        size_bytes = int(starts[-1]) + 8 * int(first_marks[-1]) * shard.num_ranks
        if os.fstat(fd).st_size < size_bytes:
            os.ftruncate(fd, size_bytes)
        buffer = mmap.mmap(fd, size_bytes)

        self.pages: dict[int, Bytes] = {
            group: np.frombuffer(buffer, np.uint8, pages * page_bytes, start).reshape(pages, -1)
            for group, (pages, page_bytes), start in zip(groups, shapes, starts, strict=False)
        }
        """The bytes of each shared group, `[page, byte]`."""
        table = np.frombuffer(buffer, dtype=np.int64, offset=int(starts[-1]))
        self._marks = table.reshape(-1, shard.num_ranks)
        self._first_marks = dict(zip(groups, first_marks.tolist(), strict=False))

    @classmethod
    def create(cls, shard: KvShard, num_pages: Sequence[int]) -> "PeerMemory":
        """The pools of this rank itself."""
        return cls(os.memfd_create("raydix-pools", os.MFD_CLOEXEC), shard, num_pages)

    @classmethod
    def attach(
        cls, location: PeerLocation, shard: KvShard, num_pages: Sequence[int]
    ) -> "PeerMemory":
        """Map the pools of a peer, which has as many pages. Raises OSError if it is gone."""
        path = f"/proc/{location.pid}/fd/{location.fd}"
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), shard, num_pages)

    @property
    def location(self) -> PeerLocation:
        """Where peers find this memory."""
        return PeerLocation(pid=os.getpid(), fd=self.fd)

    def make_pool(self, group: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The shared pages of a group as a tensor: see `MakePool`."""
        return torch.from_numpy(self.pages[group]).view(dtype).view(shape)

    def marks(self, shared: SharedLoad) -> NDArray[np.int64]:
        """How far each rank is with a load, by rank: a view."""
        row: NDArray[np.int64] = self._marks[self._first_marks[shared.group] + shared.page_id]
        return row

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last view of it."""
        os.close(self.fd)


class CpuPeers:
    """The shares that a rank writes into its peers' pools, and they into its own."""

    def __init__(self, rank: int, memories: Sequence[PeerMemory]) -> None:
        """`memories`: of all ranks in their order; that of `rank` is its own."""
        self._rank = rank
        self.own = memories[rank]
        self._others = [memory for index, memory in enumerate(memories) if index != rank]

    def push(self, group: int, page_ids: Int32Array, part: slice) -> None:
        """Write bytes `part` of some pages of this rank's pool into those of all peers."""
        pages = self.own.pages[group][page_ids, part]
        for memory in self._others:
            memory.pages[group][page_ids, part] = pages

    def announce(self, transfer_id: int, shared: SharedLoad, num_layers: int) -> None:
        """Tell all peers that they have this rank's share of the first `num_layers` layers."""
        for memory in self._others:
            memory.marks(shared)[self._rank] = transfer_id << _LAYERS_BITS | num_layers

    def num_arrived(self, transfer_id: int, shared: SharedLoad) -> int:
        """Shared layers of which the shares of all peers are in this rank's pool."""
        marks = np.delete(self.own.marks(shared), self._rank)
        is_of_load = marks >> _LAYERS_BITS == transfer_id
        arrived = np.where(is_of_load, marks & ((1 << _LAYERS_BITS) - 1), 0)
        return int(arrived.min())

    def forget(self, shared: SharedLoad) -> None:
        """Clear the marks of a load that is complete here: ids of transfers may come again."""
        self.own.marks(shared)[:] = 0


def _align(num_bytes: int) -> int:
    return -(-num_bytes // 64) * 64
