"""Measure what latent pages cost in L2 when ranks divide their copies, against one copy a rank.

    python -m benchmarks.mla_tiers --ranks 2

The pages are those of DeepSeek-V3's attention: 61 layers, 512 latent and 64 rope values a token,
bf16. It works at the level of transfer engines, which is where the difference lies: one process and
one GPU a rank, one arena for all of them, the very engines and pools of a serving rank, no model.

- shared: the arena holds a page once. Of a prefix each rank copies a share, which it pushes into
  its peers' pools; the prefix is loaded once every layer has come to every rank, bytes compared.
- replicated, in the same run and by turns with it: every rank has its own copy of each page in the
  arena, and loads and backs up all of it by itself.

Times are from the moment when all ranks begin to that at which the last one reports its load; the
time until the first layers may be used is measured on the device by who waits for them. A rank's
backup bytes are those that the arena gains when this rank alone backs the prefix up.
"""

import argparse
import multiprocessing
import queue
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.device.gpus import require_gpus
from benchmarks.records.command_line import add_commit, add_results, count, make_parser, run
from benchmarks.records.record import Figure, name_with_ranks, report
from raydix.ids import HostPageId
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena
from raydix.runtime.tiers.peer_pools import PeerPools, make_peer_pools
from raydix.runtime.tiers.transfers import TransferDone

PAGE_SIZE = 64
NUM_LAYERS, LATENT_DIM, ROPE_DIM = 61, 512, 64
MIN_SPEED_UP, MIN_SPEED_UP_PER_RANK = {2: 1.4}, 0.6
"""By ranks; and of each where there are more."""
NO_COPIES = PageCopies()
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one process does."""

    rank: int
    num_ranks: int
    device: str
    layout: KvLayout
    num_pages: int
    """Of the prefix."""
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
    """By this rank itself, each time."""
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
        self.engine.start(*((copies, NO_COPIES) if is_load else (NO_COPIES, copies)))
        return self._num_transfers

    def _take(self) -> TransferDone:
        done = self._done.get(timeout=_TIMEOUT_S)
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
            barrier.wait(_TIMEOUT_S)
            loads[name].append(way.load())
    barrier.wait(_TIMEOUT_S)
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
        barrier.wait(_TIMEOUT_S)
        if rank == task.rank:
            way.back_up()
            gained = int((way.arena_pages() == 1 + rank).sum())
    barrier.wait(_TIMEOUT_S)
    return gained


def _check(way: Way, task: Task, barrier: Barrier) -> None:
    """A load brings every byte of the arena. Raises AssertionError if not."""
    if task.rank == 0 or task.num_ranks == 1 or way.host_pages[0] > 0:
        random = np.random.default_rng(task.rank)
        for payload in way.payloads():
            payload[:] = random.bytes(len(payload))
    barrier.wait(_TIMEOUT_S)

    as_bytes(way.pool).zero_()
    if way.pool.is_cuda:
        torch.cuda.synchronize()
    barrier.wait(_TIMEOUT_S)
    way.load()
    assert np.array_equal(as_bytes(way.pool)[1:].cpu().numpy(), way.arena_pages())
    barrier.wait(_TIMEOUT_S)


def figures_of(ranks: list[dict[str, Loads]], layout: KvLayout, num_pages: int) -> list[Figure]:
    """What all ranks together have measured."""
    num_ranks, num_tokens = len(ranks), num_pages * layout.page_size
    prefix_bytes = num_pages * layout.payload_bytes(0)
    host_bytes = {
        name: sum(rank[name].backup_bytes for rank in ranks) for name in ("shared", "replicated")
    }
    load_s = {name: _load_s([rank[name] for rank in ranks]) for name in host_bytes}
    first_s = {
        name: statistics.median(max(times) for times in _columns(ranks, name))
        for name in host_bytes
    }
    backup_bytes = max(rank["shared"].backup_bytes for rank in ranks)

    return [
        *_host_figures(host_bytes, num_ranks, num_tokens),
        Figure(
            name="backup bytes of a rank, of all bytes of the prefix",
            value=backup_bytes / prefix_bytes,
            unit="1",
            max_value=-(-num_pages // num_ranks) / num_pages,
            baseline=ranks[0]["replicated"].backup_bytes / prefix_bytes,
            baseline_name="replicated",
        ),
        Figure(
            name="prefix loads, times as fast as replicated",
            value=load_s["replicated"] / load_s["shared"],
            unit="1",
            min_value=MIN_SPEED_UP.get(num_ranks, MIN_SPEED_UP_PER_RANK * num_ranks),
        ),
        Figure(
            name="load of the prefix",
            value=load_s["shared"] * 1e3,
            unit="ms",
            baseline=load_s["replicated"] * 1e3,
            baseline_name="replicated",
        ),
        Figure(
            name="until the first layer may be used",
            value=first_s["shared"] * 1e3,
            unit="ms",
            baseline=first_s["replicated"] * 1e3,
            baseline_name="replicated",
        ),
        Figure(
            name="bytes that a rank loads itself, of all bytes of the prefix",
            value=max(rank["shared"].loaded_bytes for rank in ranks) / prefix_bytes,
            unit="1",
        ),
    ]


def _host_figures(host_bytes: dict[str, int], num_ranks: int, num_tokens: int) -> list[Figure]:
    return [
        Figure(
            name="bytes in L2 per token, replicated over shared",
            value=host_bytes["replicated"] / host_bytes["shared"],
            unit="1",
            min_value=num_ranks,
            max_value=num_ranks,
        ),
        Figure(
            name="bytes in L2 per token",
            value=host_bytes["shared"] / num_tokens,
            unit="B",
            baseline=host_bytes["replicated"] / num_tokens,
            baseline_name="replicated",
        ),
    ]


def _load_s(ranks: list[Loads]) -> float:
    """The median over the repeats: from the first rank's beginning to the last one's end."""
    spans = [
        max(rank.ended_s[index] for rank in ranks) - min(rank.begun_s[index] for rank in ranks)
        for index in range(len(ranks[0].begun_s))
    ]
    return statistics.median(spans)


def _columns(ranks: list[dict[str, Loads]], name: str) -> list[tuple[float, ...]]:
    return list(zip(*(rank[name].first_layer_s for rank in ranks), strict=True))


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Start a process a rank, and put together what they find."""
    layout = KvLayout(
        page_size=PAGE_SIZE,
        dtype="bfloat16",
        dtype_bytes=2,
        groups=(
            KvGroup(
                kind=GroupKind.LATENT,
                layers=tuple(range(NUM_LAYERS)),
                num_kv_heads=1,
                head_dim=LATENT_DIM + ROPE_DIM,
            ),
        ),
    )
    num_pages = arguments.tokens // PAGE_SIZE
    arena_bytes = (arguments.ranks + 2) * num_pages * layout.host_page_bytes(0) + (64 << 20)
    arena = HostArena.create(layout, arena_bytes, num_threads=8)
    if arena.geometry.slab_pages(0) != arena.geometry.pages_per_slab:
        raise AssertionError("pages of the only group fill their slabs: ids have no gaps")

    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(arguments.ranks), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=run_rank,
                args=(
                    Task(
                        rank=rank,
                        num_ranks=arguments.ranks,
                        device=arguments.device,
                        layout=layout,
                        num_pages=num_pages,
                        repeats=arguments.repeats,
                        arena=arena.location,
                        file=Path(folder) / "meeting",
                    ),
                    barrier,
                    results,
                ),
            )
            for rank in range(arguments.ranks)
        ]
        for process in processes:
            process.start()
        found = dict(results.get(timeout=2 * _TIMEOUT_S) for _ in processes)
        for process in processes:
            process.join()

    for rank, result in found.items():
        if isinstance(result, BaseException):
            raise RuntimeError(f"rank {rank} failed") from result
    return figures_of([found[rank] for rank in range(arguments.ranks)], layout, num_pages)


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=count, default=2, help="processes, each with its GPU")
    parser.add_argument("--tokens", type=count, default=16384, help="of the prefix")
    parser.add_argument("--repeats", type=count, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    add_results(parser, "folder for the record", default=None)
    add_commit(parser)
    arguments = parser.parse_args()
    if arguments.tokens % PAGE_SIZE:
        parser.error(f"--tokens is {arguments.tokens}; expected a multiple of {PAGE_SIZE}")
    if arguments.device == "cuda":
        require_gpus(arguments.ranks)

    config = {
        "attention": "DeepSeek-V3, 61 layers",
        "ranks": arguments.ranks,
        "tokens": arguments.tokens,
        "page_size": PAGE_SIZE,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
    }
    figures = measure(arguments)
    name = name_with_ranks("mla_tiers", arguments.ranks)
    return report(name, config, figures, keep_in=arguments.results, at_commit=arguments.commit)


if __name__ == "__main__":
    run(main)
