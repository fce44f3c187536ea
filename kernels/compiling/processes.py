"""Compile variants of kernels by several processes at once, for a GPU that need not be there."""

import fcntl
import multiprocessing
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

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


class Compilers:
    """Owns: processes that compile into Triton's cache on disk, until the `with` block ends.

    To be made within `compiling_for`, in a process that uses no GPU: others are forked from it. The
    ranks of a host need the same kernels: who has the lock of the cache compiles, and the others
    wait for its end, when nearly all are there, and the list of them.
    """

    def __init__(self, num_processes: int, enter: Callable[[], None]) -> None:
        """Wait until nobody else on this host compiles. `enter`: what each process does first."""
        self._pool = multiprocessing.get_context("fork").Pool(num_processes, _enter, (enter,))
        self._compiling: dict[Variant, Any] = {}
        folder = Path(knobs.cache.dir)
        folder.mkdir(parents=True, exist_ok=True)
        # Only now, or processes that outlive this one would keep the lock.
        self._lock = (folder / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def begin(self, variant: Variant) -> None:
        """Compile a variant while others are found."""
        self._compiling[variant] = self._pool.apply_async(_compile, (variant,))

    def finish(self, variants: Sequence[Variant]) -> tuple[Compiled, ...]:
        """Wait until all of these are in the cache, with what launches them."""
        for variant in variants:
            if variant not in self._compiling:
                self.begin(variant)
        return tuple(result.get() for result in self._compiling.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the processes, and give the lock back."""
        if kind is None:
            self._pool.close()
        else:
            self._pool.terminate()
        self._pool.join()
        self._lock.close()


def _enter(enter: Callable[[], None]) -> None:
    """Leave Ctrl-C to the parent, and end at once when it says so, whatever it does itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    enter()


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
