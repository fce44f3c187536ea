"""The parts of a start, each told in the log with its seconds, so that one sees where time goes."""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raydix.runtime.config.capacity import format_bytes

PROGRESS_S = 5.0
"""How often the log tells how far a long phase has come."""


TOOK_S = "took_s"
"""The attribute of a log record that tells a phase: its seconds."""
ASIDE = ", beside the start"
"""How a line ends that tells of what nobody waited for."""
_MIN_WAIT_S = 0.05
"""Shorter pauses between two phases are told with the earlier one."""
_CLOCK_S = 0.005
"""The time by which two processes' phases may seem to overlap."""
_MIN_TOLD_S = 0.05


@contextlib.contextmanager
def phase(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log `what` with the seconds that the block took; nothing if it raises."""
    began_s = time.monotonic()
    yield
    took_s = time.monotonic() - began_s
    logger.info("%s in %.2f s", what, took_s, extra={TOOK_S: took_s})


@contextlib.contextmanager
def aside(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log a phase, as `phase` does, that nobody waits for."""
    began_s = time.monotonic()
    yield
    logger.info("%s in %.2f s%s", what, time.monotonic() - began_s, ASIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a start that has ended. Times are of one clock for all processes."""

    actor: str
    what: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """A stretch of a critical path: a phase, or None while no phase was under way."""

    phase: Phase | None
    seconds: float


def critical_path(phases: Sequence[Phase], began_s: float, ended_s: float) -> tuple[PathStep, ...]:
    """What a start from `began_s` to `ended_s` waited for, in order; the seconds add up to it all.

    Back from the end, whoever goes on next has waited for the phase that ended last before that.
    """
    steps: list[PathStep] = []
    now_s = ended_s
    while now_s > began_s:
        before = [
            each for each in phases if each.began_s < now_s and each.ended_s <= now_s + _CLOCK_S
        ]
        # Of phases that end together the shortest one says most.
        last = max(before, key=lambda each: (each.ended_s, each.began_s), default=None)
        if last is None or last.ended_s <= began_s:
            steps.append(PathStep(phase=None, seconds=now_s - began_s))
            break

        if now_s - last.ended_s >= _MIN_WAIT_S:
            steps.append(PathStep(phase=None, seconds=now_s - last.ended_s))
            now_s = last.ended_s
        begin_s = max(last.began_s, began_s)
        steps.append(PathStep(phase=last, seconds=now_s - begin_s))
        now_s = begin_s
    return tuple(reversed(steps))


def path_text(path: Sequence[PathStep]) -> str:
    """A critical path on one line, with its sum."""
    told = [step for step in path if step.seconds >= _MIN_TOLD_S]
    texts = [
        f"{step.seconds:.2f} s "
        + ("between phases" if step.phase is None else f"{step.phase.actor}: {step.phase.what}")
        for step in told
    ]
    whole_s = sum(step.seconds for step in path)
    if len(told) < len(path):
        texts.append(f"{whole_s - sum(step.seconds for step in told):.2f} s in shorter ones")
    return f"{whole_s:.2f} s: {'; '.join(texts)}"


class ReadProgress:
    """Owns: how much of a known number of bytes has been read, and what is worth telling of it."""

    def __init__(self, what: str, total_bytes: int, began_s: float) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._began_s = self._told_s = began_s
        self._num_bytes = 0

    def advance(self, num_bytes: int, now_s: float) -> str | None:
        """Note that so many bytes more were read. Returns a line to log, every `PROGRESS_S`."""
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
