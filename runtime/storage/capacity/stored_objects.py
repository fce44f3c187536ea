"""Which objects a bounded store keeps."""

import heapq
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.deadlines import Deadlines
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES, EvictionKey, eviction_key
from raydix.runtime.cache.standing import Away, Idle, Kept, Standing, standing_after
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.retention import Retention

TRIM_OBJECTS = 64
"""The number of objects that are given up at a time, so that nobody waits long for the lock."""


_MIN_PASSED = 64
"""The number of entries up to which those of former uses are not removed from the order."""


_Entry = tuple[EvictionKey, int, str]
"""An object's place in the order: its key, a number that is given once, and its name."""


@dataclass(slots=True)
class StoredObject:
    """An object and its history, in which no two uses are at the same time."""

    size_bytes: int
    created_s: float
    used_s: float
    num_hits: int = 0
    priority: int = 0
    """Every object is as important as another: nobody knows whose it is."""
    worth_s: float = 0.0
    """Nobody learns how long objects are worth keeping."""
    is_spare: bool = False
    """Never so: L1 alone knows where conversations end."""
    standing: Standing | None = None
    """What a hint says of its next use; None: nothing is known but the last one."""
    user: UserId | None = None
    """The user who gave the hint."""
    entry: _Entry = (0.0, 0, "")
    """Its place in the order; this one: none."""


class StoredObjects:
    """Owns: the sizes and order of a store's objects, what hints say of them, and room for those
    being written.

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
        self._order: list[_Entry] = []
        """A heap of objects by their keys; of former entries, too, which are passed by."""
        self._hinted: dict[UserId, dict[str, None]] = {}
        """The objects of which each user's hint says something."""
        self._ends = Deadlines[UserId]()
        """When what a user keeps is kept no longer."""
        self._aside: dict[str, int] = {}
        """The objects that could not be given up and have no place in the order, and the number of
        the entry with which each gets one again.
        """
        self._num_entries = 0
        self._now_s = 0.0
        self._last_use_s = 0.0
        self._total_bytes = 0
        self._reserved_bytes = 0
        self._is_trimming = False

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def advance(self, now_s: float) -> None:
        """Note that it is so late: what is used from now on is used at this time."""
        self._now_s = now_s

    def known(self, names: Iterable[str]) -> set[str]:
        """The objects among `names` that are there."""
        return set(filter(self._objects.__contains__, names))

    def names(self) -> tuple[str, ...]:
        """All objects, in the order in which they would go."""
        placed = [
            (self._key(found), found.entry, name)
            for name, found in self._objects.items()
            if name not in self._aside
        ]
        return (*[name for *_, name in sorted(placed)], *self._aside)

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
        self._end_keeps()
        while (
            self._total_bytes + self._reserved_bytes > target_bytes
            and len(victims) < max_objects
            and self._objects
        ):
            self._take_back()
            entry = heapq.heappop(self._order)
            if not self._is_present(entry):
                continue
            name = entry[2]
            found = self._objects[name]
            # Its key may have grown since; none shrinks, so nothing behind it has come before it.
            if isinstance(found.standing, Away) and self._key(found) != entry[0]:
                self._place(name, found)
                continue
            victims[name] = found.size_bytes
            self.remove(name)
        return victims

    def _end_keeps(self) -> None:
        """Place anew what is kept no longer.

        Where what was used last goes first, or what came last, it would stay behind all others.
        """
        while (user := self._ends.take_due(self._now_s)) is not None:
            for name in self._hinted.get(user, ()):
                found = self._objects[name]
                if isinstance(found.standing, Kept):
                    found.standing = Idle(found.standing.until_s)
                    self._place(name, found)

    def _take_back(self) -> None:
        """Give objects that were put aside their places, once it is time; all if they alone are
        left.
        """
        are_alone = len(self._aside) == len(self._objects)
        for name, until in list(self._aside.items()):
            if not are_alone and until > self._num_entries:
                break
            self._place(name, self._objects[name])

    def _is_present(self, entry: _Entry) -> bool:
        """Whether an entry of the order is that of an object now."""
        found = self._objects.get(entry[2])
        return found is not None and found.entry is entry

    def _key(self, found: StoredObject) -> EvictionKey:
        standing = Idle(found.used_s) if found.standing is None else found.standing
        return eviction_key(self._policy_key, found, standing, self._now_s)

    def _place(self, name: str, placed: StoredObject) -> None:
        """Give an object its place in the order, behind its equals."""
        self._aside.pop(name, None)
        self._num_entries += 1
        placed.entry = (self._key(placed), self._num_entries, name)
        heapq.heappush(self._order, placed.entry)
        if len(self._order) > _MIN_PASSED + 2 * len(self._objects):
            self._order = list(filter(self._is_present, self._order))
            heapq.heapify(self._order)

    def _next_use_s(self) -> float:
        """The time of a use: now, but later than any other, so that each policy orders them."""
        self._last_use_s = max(self._now_s, math.nextafter(self._last_use_s, math.inf))
        return self._last_use_s

    def retain(self, names: Iterable[str], user: UserId, retention: Retention | None) -> None:
        """Heed a user's hint of when it uses objects again; those to go first are named first.

        None: its hints hold no longer; of SEVERAL_USERS: nobody's do. Unknown names are passed by.
        """
        if retention is None:
            for each in list(self._hinted) if user == SEVERAL_USERS else [user]:
                self._end_hints(each)
            return

        standing = standing_after(retention, self._now_s)
        for name in names:
            found = self._objects.get(name)
            if found is None:
                continue
            self._end_hint(name, found)
            found.standing, found.user = standing, user
            self._hinted.setdefault(user, {})[name] = None
            self._place(name, found)
        if isinstance(standing, Kept) and user in self._hinted:
            self._ends.set(user, standing.until_s)

    def _end_hints(self, user: UserId) -> None:
        for name in list(self._hinted.get(user, ())):
            found = self._objects[name]
            self._end_hint(name, found)
            self._place(name, found)

    def _end_hint(self, name: str, found: StoredObject) -> None:
        """Forget what a hint says of an object, which is given a place anew, or goes."""
        if found.user is None:
            return
        names = self._hinted[found.user]
        del names[name]
        if not names:
            del self._hinted[found.user]
            self._ends.forget(found.user)
        found.standing = found.user = None

    @property
    def num_hinted(self) -> int:
        """The number of objects of which a hint says something."""
        return sum(map(len, self._hinted.values()))

    def add(self, sizes: Mapping[str, int]) -> None:
        """Enter objects as the most recently used, in this order, in place of their namesakes."""
        for name, size_bytes in sizes.items():
            self._place(name, self._enter(name, size_bytes))

    def put_aside(self, sizes: Mapping[str, int]) -> None:
        """Enter objects that could not be given up: whatever the policy, others go before them.

        They get a place again after as many uses as there are objects.
        """
        for name, size_bytes in sizes.items():
            self._enter(name, size_bytes)
            self._aside[name] = self._num_entries + len(self._objects)

    def _enter(self, name: str, size_bytes: int) -> StoredObject:
        """Put an object on record, which gets a place in the order yet."""
        self.remove(name)
        now_s = self._next_use_s()
        new = StoredObject(size_bytes=size_bytes, created_s=now_s, used_s=now_s)
        self._objects[name] = new
        self._total_bytes += size_bytes
        return new

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if it is unknown."""
        found = self._objects.pop(name, None)
        self._aside.pop(name, None)
        if found is not None:
            self._total_bytes -= found.size_bytes
            self._end_hint(name, found)

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark objects as used, in this order; returns those that are unknown."""
        unknown: list[str] = []
        for name in names:
            found = self._objects.get(name)
            if found is None:
                unknown.append(name)
                continue
            found.used_s = self._next_use_s()
            found.num_hits += 1
            self._end_hint(name, found)
            self._place(name, found)
        return unknown

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum, room is below zero, the
        order lacks an object, or what hints say is not what their users are known to have said.
        """
        total = sum(each.size_bytes for each in self._objects.values())
        if total != self._total_bytes or self._reserved_bytes < 0:
            raise AccountingError(
                f"objects have {total} bytes; {self._total_bytes} on record; "
                f"{self._reserved_bytes} bytes are reserved"
            )
        num_placed = sum(map(self._is_present, self._order))
        if num_placed + len(self._aside) != len(self._objects):
            raise AccountingError(
                f"{num_placed} of {len(self._objects)} objects have a place; {len(self._aside)} "
                "are put aside"
            )
        self._ends.check()
        hinted = {(each.user, name) for name, each in self._objects.items() if each.standing}
        on_record = {(user, name) for user, names in self._hinted.items() for name in names}
        if hinted != on_record:
            raise AccountingError(
                f"hints say something of {len(hinted)} objects; {len(on_record)} are on record"
            )
