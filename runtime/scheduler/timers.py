"""Times at which something is to be decided even if no event comes before."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Set

from raydix.errors import AccountingError
from raydix.ids import RequestId

_MIN_FORGOTTEN = 64
"""The number of entries of ended requests up to which they are not removed."""
_Who = tuple[RequestId, int] | None


class Alarm:
    """Owns: when one thing is looked at next, even if no event comes before."""

    __slots__ = ("_time_s",)

    def __init__(self) -> None:
        self._time_s = -math.inf

    def advance(self, time_s: float, now_s: float) -> bool:
        """Set the alarm for `time_s`; False, and no change, if it goes off before that anyway."""
        if now_s < self._time_s <= time_s:
            return False
        self._time_s = time_s
        return True


class Timers:
    """Owns: when the Scheduler, or one request of it, is to be looked at again.

    A request that ends may leave entries with times far ahead. They are removed before they are
    more than half of all.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Who]] = []
        self._numbers = itertools.count()
        self._num_entries: Counter[tuple[RequestId, int]] = Counter()
        """The number of entries of each request, by id and serial, that has not ended."""
        self._num_forgotten = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, time_s: float, request: _Who = None) -> None:
        """At `time_s`, look at a request, named by id and serial, or at everything that is late."""
        heapq.heappush(self._heap, (time_s, next(self._numbers), request))
        if request is not None:
            self._num_entries[request] += 1

    def forget(self, request: tuple[RequestId, int]) -> None:
        """Forget the times of a request that has ended."""
        self._num_forgotten += self._num_entries.pop(request, 0)
        if self._num_forgotten > max(_MIN_FORGOTTEN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if self._is_wanted(entry[2])]
            heapq.heapify(self._heap)
            self._num_forgotten = 0

    def next_s(self) -> float | None:
        """The earliest time at which something is due; None: never."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_s: float, max_due: int) -> list[_Who]:
        """Take out times that have come, the earliest first; returns whom they were for."""
        due: list[_Who] = []
        while self._heap and self._heap[0][0] <= now_s and len(due) < max_due:
            request = heapq.heappop(self._heap)[2]
            if not self._is_wanted(request):
                self._num_forgotten -= 1
                continue

            due.append(request)
            if request is not None:
                self._num_entries[request] -= 1
                if not self._num_entries[request]:
                    del self._num_entries[request]
        return due

    def check(self, living: Set[tuple[RequestId, int]]) -> None:
        """Raise AccountingError if times are kept of a request that has ended."""
        num_ended = len(self._num_entries.keys() - living)
        if num_ended:
            raise AccountingError(f"times are kept of {num_ended} requests that have ended")

    def _is_wanted(self, request: _Who) -> bool:
        return request is None or request in self._num_entries
