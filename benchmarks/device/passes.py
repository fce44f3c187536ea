"""Passes of a model between two moments on their device, and the time in which none is under way.

A pass that is enqueued while the one before it still runs leaves no gap. Where the device had run
dry, it may also have waited within the pass: all of the host's work on such a pass counts as late.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import torch


class Stamp(Protocol):
    """A moment on the clock of a device."""

    def take(self) -> None:
        """The moment is when the device gets here."""

    def wait(self) -> None:
        """Wait until the moment has come."""

    def has_come(self) -> bool:
        """Whether the device got here."""

    def ms_until(self, later: "Stamp") -> float:
        """Milliseconds from this moment to another one of the same kind; both have come."""


class CudaStamp:
    """A `Stamp` on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)

    def take(self) -> None:
        """Record an event on the stream."""
        self._event.record()

    def wait(self) -> None:
        """Wait until the device has come to the event."""
        self._event.synchronize()

    def has_come(self) -> bool:
        """Whether the device has come to the event."""
        return self._event.query()

    def ms_until(self, later: Stamp) -> float:
        """The milliseconds between the two events, by the device's clock."""
        assert isinstance(later, CudaStamp)
        return self._event.elapsed_time(later._event)


class HostStamp:
    """A `Stamp` for work that the calling thread does itself."""

    def __init__(self, time_s: float = 0.0) -> None:
        self._time_s = time_s

    def take(self) -> None:
        """Note the time on the host."""
        self._time_s = time.monotonic()

    def wait(self) -> None:
        """Return at once: the time has been noted."""

    def has_come(self) -> bool:
        """Answer yes: the time has been noted."""
        return True

    def ms_until(self, later: Stamp) -> float:
        """The milliseconds between the two times, by the host's clock."""
        assert isinstance(later, HostStamp)
        return 1e3 * (later._time_s - self._time_s)


class Pass:
    """A `StepTimer` whose moments stay. `previous`: the end of the pass before it."""

    def __init__(self, began: Stamp, ended: Stamp, previous: Stamp | None = None) -> None:
        self.began = began
        self.ended = ended
        self.late_ms = 0.0
        """The host's time to enqueue it, if the device had nothing else to do by then."""
        self._previous = previous
        self._host_began_s = 0.0

    def begin(self) -> None:
        """Stamp the beginning of the rows."""
        self._host_began_s = time.monotonic()
        self.began.take()

    def pause(self) -> None:
        """Waits count: nothing is loaded here."""

    def resume(self) -> None:
        """Do as little as `pause` does."""

    def end(self) -> None:
        """Stamp the end of the rows; note how late they were if the device waited for them."""
        self.ended.take()
        if self._previous is not None and self._previous.has_come():
            self.late_ms = 1e3 * (time.monotonic() - self._host_began_s)

    def wait_s(self) -> float:
        """Wait for the device. Returns the time between the two stamps."""
        self.ended.wait()
        return self.began.ms_until(self.ended) / 1e3


def idle_fraction(passes: Sequence[Pass]) -> float:
    """The part of the time from the first pass to the last that is in none of them."""
    wall_ms = passes[0].began.ms_until(passes[-1].ended)
    return 1 - sum(each.began.ms_until(each.ended) for each in passes) / wall_ms


def late_fraction(passes: Sequence[Pass]) -> float:
    """What may be idle within the passes, as a part of the same time."""
    return sum(each.late_ms for each in passes) / passes[0].began.ms_until(passes[-1].ended)
