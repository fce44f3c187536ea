"""The room of a store that Raydix bounds: who may write how much, and which objects go for it."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from raydix.ids import UserId
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.capacity.stored_objects import StoredObjects

T = TypeVar("T")
Remove = Callable[[Sequence[str]], Collection[str]]
"""Deletes objects from the store and returns those that it could not delete."""


class Reservation:
    """Room for the first of some objects, until the `with` block of `Room.reserve` ends.

    The room alone changes it.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        """The sizes of the objects for which there is room."""
        self.held_bytes = sum(sizes)
        """The bytes that are neither settled nor given back."""
        self.is_blocked = False
        """Whether an object could not be deleted, so that asking again at once would fail, too."""


class Room:
    """Owns: what a bounded store holds, in its order, and room for what is written. Thread-safe.

    An object that cannot be deleted stays on record: its bytes are taken, and others are tried
    before it is tried again, whatever the policy. That it is stuck is thus tested with each round
    of evictions; that it is there although somebody else has deleted it, with its own.
    """

    def __init__(
        self,
        max_bytes: int | None,
        remove: Remove,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`remove` is called without the room's lock. If it raises, its objects stay on record."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._remove = remove
        self._objects = StoredObjects(max_bytes, eviction)
        self._num_evicted = 0
        self._num_stuck = 0
        self._lock = threading.Lock()

    @contextmanager
    def _changing(self) -> Iterator[StoredObjects]:
        """The objects, under the lock, as of now."""
        with self._lock:
            self._objects.advance(self._clock())
            yield self._objects

    @contextmanager
    def reserve(self, sizes: Sequence[int]) -> Iterator[Reservation]:
        """Hold room for the first of some objects, and delete others for it.

        What is not settled is given back.
        """
        with self._changing() as objects:
            num_fitting, victims = objects.reserve(sizes)
            reservation = Reservation(sizes[:num_fitting])

        try:
            self._evict_for(reservation, victims)
            yield reservation
        finally:
            with self._lock:
                self._give_back(reservation, reservation.held_bytes)

    def _evict_for(self, reservation: Reservation, victims: Mapping[str, int]) -> None:
        reservation.is_blocked = self._evict(victims) < len(victims)
        if not reservation.is_blocked:
            return

        # What stays in the store takes the room of the last objects.
        with self._lock:
            while self._objects.is_over and reservation.sizes:
                self._give_back(reservation, reservation.sizes.pop())

    def write_in_parts(
        self,
        objects: Sequence[T],
        size_of: Callable[[T], int],
        write: Callable[[Sequence[T], Reservation], None],
    ) -> list[T]:
        """Have objects written as there is room for them; returns those for which there is none.

        `write` settles with its reservation what it has written.
        """
        refused: list[T] = []
        waiting = objects
        while waiting:
            # What is being written cannot be evicted for the rest; once it is there it can.
            with self.reserve([size_of(each) for each in waiting]) as reservation:
                fitting = waiting[: len(reservation.sizes)]
                if fitting:
                    write(fitting, reservation)
            waiting = waiting[len(fitting) :]

            if reservation.is_blocked:
                num_refused = len(waiting)  # nothing can be deleted for them
            else:
                num_refused = 0 if fitting else 1  # it alone is larger than what is not reserved
            refused += waiting[:num_refused]
            waiting = waiting[num_refused:]
        return refused

    def settle(self, reservation: Reservation, written: Mapping[str, int]) -> None:
        """Objects, with their bytes, are in the store now: the room that they took is theirs."""
        # In one piece, so that nobody counts the bytes twice and evicts for them.
        with self._changing() as objects:
            self._give_back(reservation, sum(written.values()))
            objects.add(written)

    def _give_back(self, reservation: Reservation, size_bytes: int) -> None:
        reservation.held_bytes -= size_bytes
        self._objects.release(size_bytes)

    def enforce(self) -> None:
        """Evict what is beyond the bound, as far as it can be deleted."""
        with self.reserve(()):
            pass

    def trim(self) -> bool:
        """Evict a few objects above the marks of `StoredObjects`; whether to go on at once."""
        with self._changing() as objects:
            victims = objects.trim()
        return self._evict(victims) > 0

    def _evict(self, victims: Mapping[str, int]) -> int:
        """Have objects deleted; returns how many were."""
        # Should `remove` raise, nobody knows what it has deleted: all of it counts as there.
        stuck: Collection[str] = victims.keys()
        try:
            if victims:
                stuck = self._remove(tuple(victims))
        finally:
            with self._changing() as objects:
                objects.put_aside({name: victims[name] for name in stuck})
                self._num_stuck += len(stuck)
                self._num_evicted += len(victims) - len(stuck)
        return len(victims) - len(stuck)

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._objects

    def __len__(self) -> int:
        with self._lock:
            return len(self._objects)

    def names(self) -> tuple[str, ...]:
        """All objects, in the order in which they would go."""
        with self._changing() as objects:
            return objects.names()

    def size(self, name: str) -> int | None:
        """Bytes of an object; None if it is unknown."""
        with self._lock:
            return self._objects.size(name)

    def known(self, names: Iterable[str]) -> set[str]:
        """The objects among `names` that are on record."""
        with self._lock:
            return self._objects.known(names)

    def add(self, sizes: Mapping[str, int]) -> None:
        """Enter objects that are in the store as the most recently used, in this order."""
        with self._changing() as objects:
            objects.add(sizes)

    def forget(self, names: Iterable[str]) -> None:
        """Take objects off the record that are gone from the store, or were never there."""
        with self._lock:
            for name in names:
                self._objects.remove(name)

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark objects as used, in this order; returns those that are unknown."""
        with self._changing() as objects:
            return objects.touch(names)

    def retain(self, names: Iterable[str], user: UserId, retention: Retention | None) -> None:
        """Heed a user's hint, as `StorageBackend.retain` says."""
        with self._changing() as objects:
            objects.retain(names, user, retention)

    def figures(self) -> dict[str, int]:
        """The figures for `StorageBackend.stats`."""
        with self._lock:
            return {
                "objects": len(self._objects),
                "bytes": self._objects.total_bytes,
                "max_bytes": self._max_bytes or 0,
                "objects_hinted": self._objects.num_hinted,
                "objects_evicted": self._num_evicted,
                "evictions_failed": self._num_stuck,
            }

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum over objects."""
        with self._lock:
            self._objects.check()
