"""Ranks that load and back up latent pages by transfer engines, each in a process of its own."""

import multiprocessing
import queue
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raydix.ids import HostPageId
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena
from raydix.runtime.tiers.peer_pools import PeerPools, make_peer_pools
from raydix.runtime.tiers.transfers import TransferDone

TIMEOUT_S = 120.0
_NO_COPIES = PageCopies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process does."""

    rank: int
    num_ranks: int
    device: str
    layout: KvLayout
    num_pages: int
    """The pages of the prefix."""
    repeats: int
    arena: ArenaLocation
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """One rank's loads of one way, entry by entry; times by the clock that all processes share."""

    begun_s: list[float]
    ended_s: list[float]
    first_layer_s: list[float]
    loaded_bytes: int
    """The bytes that this rank itself loads, each time."""
    backup_bytes: int


class Way:
    """One rank's engine for one way to keep latent pages."""

    def __init__(self, task: Task, shard: KvShard, made: PeerPools, first_host_page: int) -> None:
        self.pool = made.pools[0]
        self.arena = HostArena.attach(task.arena)
        self.host_pages = np.arange(first_host_page, first_host_page + task.num_pages)
        self._done: queue.SimpleQueue[TransferDone | BaseException] = queue.SimpleQueue()
        self._num_transfers = 0
        arguments: dict[str, Any] = {"on_done": self._done.put, "on_error": self._done.put}

        self.engine: CpuTransfers | CudaTransfers
        if self.pool.is_cuda:
            self.engine = CudaTransfers(shard, made.pools, self.arena, peers=made.cuda, **arguments)
            self.engine.wait_registered()
        else:
            self.engine = CpuTransfers(shard, made.pools, self.arena, peers=made.cpu, **arguments)

    def load(self) -> tuple[float, float, float, int]:
        """When the load began and ended, how long its first layer took, its bytes."""
        begun_s = time.monotonic()
        transfer_id = self._start(is_load=True)
        first_s = self._wait_first(transfer_id, begun_s)
        done = self._take()
        return begun_s, time.monotonic(), first_s, done.num_bytes

    def back_up(self) -> None:
        """All pages; returns when they are in the arena."""
        self._start(is_load=False)
        self._take()

    def arena_pages(self) -> NDArray[np.uint8]:
        """`[page, byte]` of this way's host pages, copied."""
        return np.stack([np.frombuffer(payload, dtype=np.uint8) for payload in self.payloads()])

    def payloads(self) -> list[memoryview]:
        """The bytes of this way's host pages, in the arena itself."""
        return [self.arena.payload(HostPageId(page), 0) for page in self.host_pages.tolist()]

    def _wait_first(self, transfer_id: int, begun_s: float) -> float:
        self.engine.wait_layer(transfer_id, 0)
        if self.pool.is_cuda:
            torch.cuda.current_stream().synchronize()
        return time.monotonic() - begun_s

    def _start(self, *, is_load: bool) -> int:
        self._num_transfers += 1
        num_pages = len(self.host_pages)
        copies = PageCopies(
            transfer_ids=int32_array([self._num_transfers] * num_pages),
            groups=int32_array([0] * num_pages),
            page_ids=int32_array(range(1, num_pages + 1)),
            host_page_ids=int32_array(self.host_pages),
            generations=int32_array(self.arena.generations[self.host_pages]),
        )
        self.engine.start(*((copies, _NO_COPIES) if is_load else (_NO_COPIES, copies)))
        return self._num_transfers

    def _take(self) -> TransferDone:
        done = self._done.get(timeout=TIMEOUT_S)
        if isinstance(done, BaseException):
            raise done
        return done


def run_rank(task: Task, barrier: Barrier, results: "multiprocessing.Queue[Any]") -> None:
    """The body of a rank's process."""
    try:
        results.put((task.rank, _measure_rank(task, barrier)))
    except BaseException as error:
        results.put((task.rank, error))
        barrier.abort()
        raise


def _measure_rank(task: Task, barrier: Barrier) -> dict[str, Loads]:
    device = torch.device(task.device)
    if device.type == "cuda":
        device = torch.device("cuda", task.rank)
        torch.cuda.set_device(device)
    shard = KvShard(layout=task.layout, rank=task.rank, num_ranks=task.num_ranks)
    made = make_peer_pools(shard, [task.num_pages], device, task.file)

    # The same pools, as if the rank were alone with its copies of the pages.
    alone = PeerPools(pools=made.pools)
    ways = {
        "shared": Way(task, shard, made, 0),
        "replicated": Way(
            task, KvShard(layout=task.layout), alone, (1 + task.rank) * task.num_pages
        ),
    }
    backup_bytes = {name: _backup_bytes(way, task, barrier) for name, way in ways.items()}
    for way in ways.values():
        _check(way, task, barrier)

    loads: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in ways}
    for _ in range(task.repeats):
        for name, way in ways.items():
            barrier.wait(TIMEOUT_S)
            loads[name].append(way.load())
    barrier.wait(TIMEOUT_S)
    for way in ways.values():
        way.engine.close()

    return {
        name: Loads(
            begun_s=[begun_s for begun_s, _, _, _ in found],
            ended_s=[ended_s for _, ended_s, _, _ in found],
            first_layer_s=[first_s for _, _, first_s, _ in found],
            loaded_bytes=found[0][3],
            backup_bytes=backup_bytes[name],
        )
        for name, found in loads.items()
    }


def _backup_bytes(way: Way, task: Task, barrier: Barrier) -> int:
    """What the arena gains by this rank's backup of pages none of whose bytes is zero."""
    as_bytes(way.pool).fill_(1 + task.rank)
    gained = 0
    for rank in range(task.num_ranks):
        barrier.wait(TIMEOUT_S)
        if rank == task.rank:
            way.back_up()
            gained = int((way.arena_pages() == 1 + rank).sum())
    barrier.wait(TIMEOUT_S)
    return gained


def _check(way: Way, task: Task, barrier: Barrier) -> None:
    """A load brings every byte of the arena. Raises AssertionError if not."""
    if task.rank == 0 or task.num_ranks == 1 or way.host_pages[0] > 0:
        random = np.random.default_rng(task.rank)
        for payload in way.payloads():
            payload[:] = random.bytes(len(payload))
    barrier.wait(TIMEOUT_S)

    as_bytes(way.pool).zero_()
    if way.pool.is_cuda:
        torch.cuda.synchronize()
    barrier.wait(TIMEOUT_S)
    way.load()
    assert np.array_equal(as_bytes(way.pool)[1:].cpu().numpy(), way.arena_pages())
    barrier.wait(TIMEOUT_S)
