"""Which objects a bounded store keeps."""

import heapq
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES, EvictionKey
from raydix.runtime.config.policies import EvictionPolicy

TRIM_OBJECTS = 64
"""The number of objects that are given up at a time, so that nobody waits long for the lock."""


_MIN_PASSED = 64
"""The number of entries up to which those of former uses are not removed from the order."""


@dataclass(slots=True)
class StoredObject:
    """An object and its history, in which the n-th use of any object counts as the time n."""

    size_bytes: int
    created_s: float
    used_s: float
    num_hits: int = 0
    priority: int = 0
    """Every object is as important as another: nobody knows whose it is."""


class StoredObjects:
    """Owns: the sizes and order of a store's objects, and room for those being written.

    Above its high mark, 31/32 of `max_bytes`, `trim` gives up objects down to its low mark, 15/16.
    A writer that comes to `max_bytes` all the same gives up what it needs itself.
    """

    def __init__(
        self, max_bytes: int | None, eviction: EvictionPolicy = EvictionPolicy.LRU
    ) -> None:
        """`eviction`: which objects go first."""
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._policy_key = EVICTION_POLICIES[eviction]
        self._objects: dict[str, StoredObject] = {}
        self._order: list[tuple[EvictionKey, float, str]] = []
        """A heap of objects by their keys and last uses; of former uses, too, which are passed by.
        """
        self._uses = itertools.count(1)
        self._total_bytes = 0
        self._reserved_bytes = 0
        self._is_trimming = False

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def known(self, names: Iterable[str]) -> set[str]:
        """The objects among `names` that are there."""
        return set(filter(self._objects.__contains__, names))

    def names(self) -> tuple[str, ...]:
        """All objects, in the order in which they would go."""
        return tuple(name for *_, name in sorted(filter(self._is_present, self._order)))

    def size(self, name: str) -> int | None:
        """Bytes of an object; None if it is unknown."""
        found = self._objects.get(name)
        return None if found is None else found.size_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects, without those being written."""
        return self._total_bytes

    @property
    def is_over(self) -> bool:
        """Whether more is taken than there is room, as objects that were given up came back."""
        return self._total_bytes + self._reserved_bytes > self._max_bytes

    def reserve(self, sizes: Sequence[int]) -> tuple[int, dict[str, int]]:
        """Hold room for the first of some objects; returns how many, and what is given up."""
        room_bytes = self._max_bytes - self._reserved_bytes
        num_objects = len(sizes)
        while sum(sizes[:num_objects]) > room_bytes:
            num_objects -= 1
        self._reserved_bytes += sum(sizes[:num_objects])
        return num_objects, self._give_up(self._max_bytes, len(self._objects))

    def release(self, size_bytes: int) -> None:
        """Give back room that `reserve` held: objects are written, or will not be."""
        self._reserved_bytes -= size_bytes

    def trim(self) -> dict[str, int]:
        """Give up at most TRIM_OBJECTS, down to the low mark; returns none once it is reached."""
        low_bytes = self._max_bytes * 15 // 16
        mark_bytes = low_bytes if self._is_trimming else self._max_bytes * 31 // 32
        self._is_trimming = self._total_bytes + self._reserved_bytes > mark_bytes
        return self._give_up(low_bytes, TRIM_OBJECTS) if self._is_trimming else {}

    def _give_up(self, target_bytes: int, max_objects: int) -> dict[str, int]:
        """Take off what goes first, until at most `target_bytes` are taken."""
        victims: dict[str, int] = {}
        while (
            self._total_bytes + self._reserved_bytes > target_bytes
            and len(victims) < max_objects
            and self._objects
        ):
            entry = heapq.heappop(self._order)
            if self._is_present(entry):
                name = entry[2]
                victims[name] = self._objects[name].size_bytes
                self.remove(name)
        return victims

    def _is_present(self, entry: tuple[EvictionKey, float, str]) -> bool:
        """Whether an entry of the order is that of an object's last use."""
        found = self._objects.get(entry[2])
        return found is not None and found.used_s == entry[1]

    def _place(self, name: str, placed: StoredObject) -> None:
        key = self._policy_key(placed, placed.used_s)
        heapq.heappush(self._order, (key, placed.used_s, name))
        if len(self._order) > _MIN_PASSED + 2 * len(self._objects):
            self._order = list(filter(self._is_present, self._order))
            heapq.heapify(self._order)

    def add(self, sizes: Mapping[str, int]) -> None:
        """Enter objects as the most recently used, in this order, in place of their namesakes."""
        for name, size_bytes in sizes.items():
            self.remove(name)
            now_s = float(next(self._uses))
            new = StoredObject(size_bytes=size_bytes, created_s=now_s, used_s=now_s)
            self._objects[name] = new
            self._total_bytes += size_bytes
            self._place(name, new)

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if it is unknown."""
        found = self._objects.pop(name, None)
        if found is not None:
            self._total_bytes -= found.size_bytes

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark objects as used, in this order; returns those that are unknown."""
        unknown: list[str] = []
        for name in names:
            found = self._objects.get(name)
            if found is None:
                unknown.append(name)
                continue
            found.used_s = float(next(self._uses))
            found.num_hits += 1
            self._place(name, found)
        return unknown

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum, room is below zero, or
        the order lacks an object.
        """
        total = sum(each.size_bytes for each in self._objects.values())
        if total != self._total_bytes or self._reserved_bytes < 0:
            raise AccountingError(
                f"objects have {total} bytes; {self._total_bytes} on record; "
                f"{self._reserved_bytes} bytes are reserved"
            )
        num_placed = sum(map(self._is_present, self._order))
        if num_placed != len(self._objects):
            raise AccountingError(f"{num_placed} of {len(self._objects)} objects have a place")
