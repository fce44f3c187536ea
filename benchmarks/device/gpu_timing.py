"""What the benchmarks of kernels share: times on the device, the command line and the record."""

import sys
from collections.abc import Callable, Mapping
from statistics import median

import torch

from benchmarks.device.gpus import require_gpus
from benchmarks.records.command_line import add_commit, add_results, make_parser
from benchmarks.records.record import Figure, report

try:
    from triton.testing import do_bench
except ModuleNotFoundError:
    # All who import this measure Triton's kernels, and would import those next.
    sys.exit(
        f"torch {torch.__version__} has no Triton, which these kernels are written in; expected a "
        "torch for CUDA, and a GPU."
    )

Work = Callable[[], object]
"""Enqueues on the current stream."""


def median_ms(work: Work, repeat_ms: int = 150) -> float:
    """Median time by events of `work`. Caches are flushed between runs."""
    return float(do_bench(work, warmup=25, rep=repeat_ms, return_mode="median"))


def capture(work: Work) -> Work:
    """The replay of a CUDA graph of `work`, which is run once before."""
    work()
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def graph_us(work: Work, launches: int, replays: int = 9) -> float:
    """Median microseconds per launch of a captured sequence of so many."""
    replay = capture(work)
    replay()
    times = []
    for _ in range(replays):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return median(times) * 1e3 / launches


def run_kernel_benchmark(
    name: str,
    description: str | None,
    config: Mapping[str, object],
    measure: Callable[[], list[Figure]],
) -> int:
    """Read the command line, measure with a fixed seed, and report; the exit status."""
    parser = make_parser(description)
    add_results(parser, help="folder for the record")
    add_commit(parser)
    arguments = parser.parse_args()
    require_gpus(1)

    torch.manual_seed(0)
    figures = measure()
    config = {"gpu": torch.cuda.get_device_name(), **config}
    return report(name, config, figures, keep_in=arguments.results, at_commit=arguments.commit)
