"""Deadlines of many names, most of which are heard of again before they are due."""

import heapq
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from raydix.errors import AccountingError

_MIN_STALE = 64
"""The number of entries up to which those of former times are not removed."""


class Ordered(Hashable, Protocol):
    """What can be a name: those that are due at the same time come in their order."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether this one comes first."""


Name = TypeVar("Name", bound=Ordered)


class Deadlines(Generic[Name]):
    """Owns: by when each name is due.

    A name that is due at another time, or never, leaves an entry of its former time, which may be
    far ahead. Such entries are removed before they are more than half of all.
    """

    def __init__(self) -> None:
        self._times_s: dict[Name, float] = {}
        self._heap: list[tuple[float, Name]] = []

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def next_s(self) -> float | None:
        """The time at which the first name is due; None: there is none."""
        return self._heap[0][0] if self._heap else None

    @property
    def names(self) -> set[Name]:
        """The names that are due at some time."""
        return set(self._times_s)

    def set(self, name: Name, time_s: float) -> None:
        """Have a name due at a time, and at no other."""
        self._times_s[name] = time_s
        heapq.heappush(self._heap, (time_s, name))
        self._remove_stale()

    def forget(self, name: Name) -> None:
        """Forget a name, if it is due at all."""
        if self._times_s.pop(name, None) is not None:
            self._remove_stale()

    def take_due(self, now_s: float) -> Name | None:
        """Take out the first name if its time has come; None: that of none has."""
        if not self._heap or self._heap[0][0] > now_s:
            return None
        name = self._heap[0][1]
        self.forget(name)
        return name

    def _remove_stale(self) -> None:
        """The first entry is never stale, so that nobody wakes for it."""
        if len(self._heap) > max(_MIN_STALE, 2 * len(self._times_s)):
            self._heap = [(time_s, name) for name, time_s in self._times_s.items()]
            heapq.heapify(self._heap)
        while self._heap and self._times_s.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def check(self) -> None:
        """Raise AccountingError unless each name has an entry, and few others are left."""
        entries = set(self._heap)
        lacking = [name for name, time_s in self._times_s.items() if (time_s, name) not in entries]
        if lacking or len(self._heap) > max(_MIN_STALE, 2 * len(self._times_s)):
            raise AccountingError(
                f"{len(self._times_s)} names have {len(self._heap)} times, {len(lacking)} none"
            )
