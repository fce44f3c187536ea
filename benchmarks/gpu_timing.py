"""Times of work on the GPU, and what the GPU benchmarks have in common on the command line."""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from triton.testing import do_bench

from benchmarks.record import REPOSITORY


def median_ms(work: Callable[[], object], repeat_ms: int = 150) -> float:
    """Median time by events of `work`, which enqueues on the current stream. Caches are flushed
    between runs.
    """
    return float(do_bench(work, warmup=25, rep=repeat_ms, return_mode="median"))


def gpu_name() -> str:
    """The GPU's model."""
    return torch.cuda.get_device_name()


def parse_arguments(description: str | None) -> argparse.Namespace:
    """`results`: the folder for the record; `commit`: of the code, where there is no repository
    beside it.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--commit", default=None)
    return parser.parse_args()
