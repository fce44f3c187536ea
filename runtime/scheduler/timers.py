"""Times at which something is to be decided even if no event comes before."""

import heapq
import itertools

from raydix.ids import RequestId


class Timers:
    """Owns: when the Scheduler, or one request of it, is to be looked at again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, tuple[RequestId, int] | None]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time_s: float, request: tuple[RequestId, int] | None = None) -> None:
        """At `time_s`, look at a request, named by id and serial number, or at everything that has a time."""
        heapq.heappush(self._heap, (time_s, next(self._numbers), request))

    def next_s(self) -> float | None:
        """The earliest time; None: never."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float) -> list[tuple[RequestId, int] | None]:
        """Forget the times that have come; returns whom they were for."""
        due: list[tuple[RequestId, int] | None] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due
