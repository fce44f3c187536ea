"""Compile variants of kernels by several processes at once, for a GPU that need not be there."""

import fcntl
import multiprocessing
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from triton import knobs
from triton.backends import backends

from raydix.kernels.compiling.variants import Variant

_LOCK = "raydix.lock"
"""The file in Triton's cache whose lock the process has that compiles."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling a variant took."""

    kernel: str
    seconds: float
    was_there: bool
    """Whether Triton's cache on disk had it."""


def compile_variants(variants: Sequence[Variant], num_processes: int) -> tuple[Compiled, ...]:
    """Put all variants into Triton's cache on disk, with what launches them.

    To be called within `compiling_for`, in a process that uses no GPU: others are forked from it.
    """
    with _only_here():
        pool = multiprocessing.get_context("fork").Pool(num_processes, _take_no_signals)
        try:
            compiled = tuple(pool.imap_unordered(_compile, variants))
            pool.close()
        except BaseException:
            pool.terminate()
            raise
        finally:
            pool.join()
    return compiled


def _take_no_signals() -> None:
    """Leave Ctrl-C to the parent, and end at once when it says so, whatever it does itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _only_here() -> Iterator[None]:
    """Wait until no other process compiles into the same cache: ranks need the same kernels."""
    folder = Path(knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(variant: Variant) -> Compiled:
    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    began_s = time.monotonic()
    compiled = variant.compile()
    if (make_launcher := _launcher_class()) is not None:
        # Some versions of Triton compile a module in C for every signature.
        make_launcher(compiled.src, compiled.metadata)
    return Compiled(variant.kernel, time.monotonic() - began_s, all(hits))


@cache
def _launcher_class() -> Any | None:
    """What Triton makes launchers by; None on hosts without NVIDIA's driver."""
    try:
        return backends["nvidia"].driver().launcher_cls
    except (AssertionError, OSError, ImportError, subprocess.CalledProcessError):
        return None
