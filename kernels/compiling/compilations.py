"""What Triton compiles in this process, and when: before it serves, or while requests wait."""

import logging
import threading
from typing import Any, Protocol

from triton import knobs

logger = logging.getLogger(__name__)


class _Times(Protocol):
    """What Triton tells of a compilation, in microseconds."""

    @property
    def total(self) -> int: ...


class Compilations:
    """Owns: how many variants of kernels this process had to compile, or to find on disk.

    One process has one. Each variant counts once: Triton keeps it, then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_serving = False
        self._compiled_ahead = 0
        self._compiled_serving = 0
        self._found_serving = 0

    def watch(self) -> None:
        """Count from now on whatever Triton compiles in this process."""
        knobs.compilation.listener = self._note

    def add_compiled(self, count: int) -> None:
        """Count what other processes have compiled for this one."""
        with self._lock:
            self._compiled_ahead += count

    def serve(self) -> None:
        """Say that requests wait for what comes from now on."""
        with self._lock:
            self._is_serving = True

    def stats(self) -> dict[str, Any]:
        """Variants compiled before this process served and since, and those found on disk since."""
        with self._lock:
            return {
                "kernels_compiled_start": self._compiled_ahead,
                "kernels_compiled_serving": self._compiled_serving,
                "kernels_found_serving": self._found_serving,
            }

    def _note(self, *, src: Any, times: _Times, cache_hit: bool, **_: Any) -> None:
        with self._lock:
            is_serving = self._is_serving
            self._compiled_ahead += not cache_hit and not is_serving
            self._compiled_serving += not cache_hit and is_serving
            self._found_serving += cache_hit and is_serving
        if is_serving or not cache_hit:
            logger.log(
                logging.WARNING if is_serving else logging.INFO,
                "kernel %s %s in %.2f s%s",
                src.name,
                "found on disk" if cache_hit else "compiled",
                times.total / 1e6,
                " while requests wait: it was not foreseen" if is_serving else "",
            )
