"""Measure how long tokens take to experts on other ranks and back, by each dispatch backend.

    python -m benchmarks.dispatch [--ranks N] [--backends symmetric nccl ...]

Ranks are plain processes with one GPU each. Shapes are DeepSeek-V3's: hidden 7168, top-8 of 256
experts, bf16, choices drawn evenly. Up to 512 tokens a rank: the low-latency form in a CUDA graph;
then the normal form, eager. No experts run: what reaches a rank goes back. Each exchange is timed
by events on every rank; the slowest rank counts, and of many exchanges the median. The ranks are
in step, since an exchange without a clock comes right before each timed one. GB/s: hidden states
that leave a GPU, by the time of the dispatch.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from torch.distributed import FileStore, PrefixStore, Store

from benchmarks.device.exchange_times import (
    CHOICES,
    EXPERTS,
    HIDDEN,
    draw,
    time_captured,
    time_eager,
)
from benchmarks.device.gpus import require_gpus
from benchmarks.records.command_line import add_commit, add_results, count, make_parser, run
from benchmarks.records.record import Figure, name_with_ranks, report
from raydix.moe.dispatch.libraries import connect_library
from raydix.moe.dispatch.library import find_library, library_names
from raydix.moe.dispatch.nccl import NcclDispatcher
from raydix.moe.dispatch.protocol import (
    Dispatcher,
    DispatchForm,
    DispatchShape,
)

LOW_LATENCY_TOKENS = (1, 16, 64, 128, 512)
NORMAL_TOKENS = (128, 1024, 4096, 8192)
OURS = "symmetric"
LATENCY = (DispatchForm.LOW_LATENCY, 128)
MAX_LATENCY_US = {2: 60, 4: 100}
"""The longest times that pass, by ranks."""
BANDWIDTH, MIN_GBPS = (DispatchForm.NORMAL, 4096), 250
_REPEATS = 50
_POLL_S = 0.5
Connect = Callable[[Store, int, DispatchShape, torch.device], Dispatcher]


def _symmetric(store: Store, rank: int, shape: DispatchShape, device: torch.device) -> Dispatcher:
    # Imported here: Triton is there on machines with a GPU alone.
    from raydix.moe.dispatch.symmetric import connect_symmetric

    return connect_symmetric(store, rank, shape, device)


def _connect_library(
    backend: str, store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> Dispatcher:
    return connect_library(find_library(backend), store, rank, shape, device)


BACKENDS: Mapping[str, Connect] = {
    OURS: _symmetric,
    "nccl": NcclDispatcher,
    **{backend: partial(_connect_library, backend) for backend in library_names()},
}
DEFAULT_BACKENDS = (OURS, "nccl")
"""The backends that every machine with GPUs has. Records are named after the others."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """The times of one backend, form and number of tokens."""

    backend: str
    form: DispatchForm
    num_tokens: int
    dispatch_us: float
    combine_us: float
    both_us: float
    sent_bytes: int
    """The bytes that leave one GPU in a dispatch."""

    @property
    def name(self) -> str:
        """The name under which its figures are recorded."""
        form = "graph" if self.form is DispatchForm.LOW_LATENCY else "normal"
        return f"{self.backend}, {self.num_tokens} tokens, {form}"

    @property
    def gbps(self) -> float:
        """Out of a GPU."""
        return self.sent_bytes / self.dispatch_us / 1e3


def measure(
    store: Store, rank: int, num_ranks: int, backends: Sequence[str], repeats: int
) -> list[Times]:
    """All backends and sizes on this rank; every rank returns the same."""
    device = torch.device("cuda", rank)
    shape = DispatchShape(
        num_ranks=num_ranks,
        seats_per_rank=EXPERTS // num_ranks,
        hidden_size=HIDDEN,
        experts_per_token=CHOICES,
        max_tokens=max(NORMAL_TOKENS),
        max_low_latency_tokens=max(LOW_LATENCY_TOKENS),
        dtype=torch.bfloat16,
    )
    sizes = [(DispatchForm.LOW_LATENCY, num) for num in LOW_LATENCY_TOKENS]
    sizes += [(DispatchForm.NORMAL, num) for num in NORMAL_TOKENS]

    found = []
    for backend in backends:
        dispatcher = BACKENDS[backend](PrefixStore(backend, store), rank, shape, device)
        for form, num_tokens in sizes:
            tokens = draw(num_tokens, num_ranks, form, device)
            if form is DispatchForm.LOW_LATENCY:
                if form not in dispatcher.captured_forms:
                    continue
                own = time_captured(dispatcher, tokens, repeats)
            else:
                time_eager(dispatcher, tokens, 3)
                own = [(*each, sum(each)) for each in time_eager(dispatcher, tokens, repeats)]

            prefix = f"{backend} {form.name} {num_tokens} "
            slowest = _slowest(_exchange(store, prefix, own, rank, num_ranks))
            found.append(
                Times(
                    backend=backend,
                    form=form,
                    num_tokens=num_tokens,
                    dispatch_us=slowest[0],
                    combine_us=slowest[1],
                    both_us=slowest[2],
                    sent_bytes=tokens.sent_bytes(rank),
                )
            )
        dispatcher.close()
    return found


def _exchange(
    store: Store, name: str, own: Sequence[tuple[float, ...]], rank: int, num_ranks: int
) -> list[list[tuple[float, ...]]]:
    """What every rank has measured."""
    store.set(f"{name}{rank}", json.dumps(own))
    return [json.loads(store.get(f"{name}{peer}")) for peer in range(num_ranks)]


def _slowest(by_rank: Sequence[Sequence[tuple[float, ...]]]) -> list[float]:
    """Medians over repeats of what the slowest rank took."""
    slowest = [
        [max(ranks) for ranks in zip(*repeats, strict=True)]
        for repeats in zip(*by_rank, strict=True)
    ]
    return [median(column) for column in zip(*slowest, strict=True)]


def figures_of(times: Sequence[Times], num_ranks: int) -> list[Figure]:
    """All figures, with the bars of ours."""
    figures = []
    for each in times:
        is_ours = each.backend == OURS
        has_latency_bar = is_ours and (each.form, each.num_tokens) == LATENCY
        has_bandwidth_bar = is_ours and (each.form, each.num_tokens) == BANDWIDTH
        figures += [
            Figure(name=f"{each.name}, dispatch", value=each.dispatch_us, unit="us"),
            Figure(name=f"{each.name}, combine", value=each.combine_us, unit="us"),
            Figure(
                name=f"{each.name}, both",
                value=each.both_us,
                unit="us",
                max_value=MAX_LATENCY_US.get(num_ranks) if has_latency_bar else None,
            ),
            Figure(
                name=f"{each.name}, out of a GPU",
                value=each.gbps,
                unit="GB/s",
                min_value=MIN_GBPS if has_bandwidth_bar else None,
            ),
        ]
    return figures + _comparisons(times)


def _comparisons(times: Sequence[Times]) -> list[Figure]:
    """Ours over each other backend where the bars are."""
    by_key = {(each.backend, each.form, each.num_tokens): each.both_us for each in times}
    return [
        Figure(
            name=f"{OURS} over {backend}, {num_tokens} tokens",
            value=by_key[OURS, form, num_tokens] / both_us,
            unit="1",
            max_value=1.0,
        )
        for (backend, form, num_tokens), both_us in by_key.items()
        if backend != OURS
        and (form, num_tokens) in (LATENCY, BANDWIDTH)
        and (OURS, form, num_tokens) in by_key
    ]


def _be_rank(connection: Connection, file: Path, rank: int, arguments: argparse.Namespace) -> None:
    for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    store = FileStore(str(file), arguments.ranks)
    with torch.inference_mode():
        times = measure(store, rank, arguments.ranks, arguments.backends, arguments.repeats)
    if rank == 0:
        connection.send((torch.cuda.get_device_name(), times))


def run_ranks(arguments: argparse.Namespace) -> tuple[str, list[Times]]:
    """The GPU's name, and what rank 0 says. Raises RuntimeError if a rank fails."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe()
        ranks = [
            context.Process(target=_be_rank, args=(theirs, Path(folder) / "store", rank, arguments))
            for rank in range(arguments.ranks)
        ]
        for process in ranks:
            process.start()
        theirs.close()

        try:
            while not ours.poll(_POLL_S):
                if any(each.exitcode for each in ranks):
                    raise RuntimeError(f"ranks ended with {[each.exitcode for each in ranks]}")
            gpu, times = ours.recv()
        except EOFError:
            raise RuntimeError("a rank has failed: see above") from None
        finally:
            for process in ranks:
                process.kill()
                process.join()
    return gpu, times


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=count, default=2, help="GPUs")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=DEFAULT_BACKENDS)
    parser.add_argument("--repeats", type=count, default=_REPEATS, help="timed exchanges of a size")
    add_results(parser, help="folder for the record")
    add_commit(parser)
    arguments = parser.parse_args()
    require_gpus(arguments.ranks)

    gpu, times = run_ranks(arguments)
    config = {
        "gpu": gpu,
        "ranks": arguments.ranks,
        "backends": arguments.backends,
        "hidden": HIDDEN,
        "experts": EXPERTS,
        "experts_per_token": CHOICES,
        "dtype": "bfloat16",
        "repeats": arguments.repeats,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }
    others = [each for each in arguments.backends if each not in DEFAULT_BACKENDS]
    return report(
        name_with_ranks("_".join(["dispatch", *others]), arguments.ranks),
        config,
        figures_of(times, arguments.ranks),
        keep_in=arguments.results,
        at_commit=arguments.commit,
    )


if __name__ == "__main__":
    run(main)
