"""The parts of a start, each told in the log with its seconds, so that one sees where time goes."""

import contextlib
import logging
import time
from collections.abc import Iterator

from raydix.runtime.config.capacity import format_bytes

PROGRESS_S = 5.0
"""How often the log tells how far a long phase has come."""


@contextlib.contextmanager
def phase(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log `what` with the seconds that the block took; nothing if it raises."""
    began_s = time.monotonic()
    yield
    logger.info("%s in %.1f s", what, time.monotonic() - began_s)


class ReadProgress:
    """Owns: how much of a known number of bytes has been read, and what is worth telling of it."""

    def __init__(self, what: str, total_bytes: int, began_s: float) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._began_s = self._told_s = began_s
        self._num_bytes = 0

    def advance(self, num_bytes: int, now_s: float) -> str | None:
        """So many more were read. Returns a line to log, every `PROGRESS_S`."""
        self._num_bytes += num_bytes
        if now_s - self._told_s < PROGRESS_S:
            return None
        self._told_s = now_s
        of = f"{format_bytes(self._num_bytes)} of {format_bytes(self._total_bytes)}"
        return f"{self._what}: {of} so far"

    def summary(self, now_s: float) -> str:
        """All that there was has been read."""
        seconds = now_s - self._began_s
        speed = format_bytes(int(self._num_bytes / seconds)) if seconds > 0 else "all"
        return f"{self._what}: {format_bytes(self._num_bytes)} in {seconds:.1f} s, {speed}/s"
