"""L3 in memory, with delays and faults on demand."""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raydix.ids import UserId
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.backends.corruption import Corruption, corrupt
from raydix.runtime.storage.batches import compare_length
from raydix.runtime.storage.capacity.room import Room
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, and how often; each object of each read or write draws anew."""

    seed: int = 0
    max_delay_s: float = 0.0
    """The longest random delay of an operation, so that operations end out of order."""
    latency_s: float = 0.0
    """The time before the first byte of each batch. If infinite, none ends until faults change."""
    max_bytes_per_s: float = math.inf
    """The speed of the link that all reads and writes share, first come, first served."""
    failure_fraction: float = 0.0
    corrupt_fraction: float = 0.0
    """The fraction of reads that are spoiled. A stored object stays good unless it is deleted."""
    refuses_writes: bool = False
    """Whether every write finds the store full."""
    refuses_deletes: bool = False
    """Whether nothing can be evicted."""


class FakeBackend:
    """Owns: objects in memory, which survive `close` and `open` of this instance."""

    def __init__(
        self,
        max_bytes: int | None = None,
        faults: Faults | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        self._faults = faults or Faults()
        self._random = random.Random(self._faults.seed)
        self._clock = clock
        self._sleep = sleep

        self._room = Room(max_bytes, self._remove, eviction, clock)
        self._objects: dict[str, bytes] = {}
        self._namespace = ""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._counts = BackendCounts("the fake backend")
        self._link_free_s = -math.inf

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Serve this namespace."""
        self._namespace = namespace.hex

    def set_faults(self, faults: Faults) -> None:
        """Exchange the faults, but for the seed; what is under way ends under the former ones."""
        with self._changed:
            self._faults = faults
            self._changed.notify_all()

    def _begin(self) -> Faults:
        """Wait until anything is answered at all; returns the faults that a batch meets."""
        with self._changed:
            self._changed.wait_for(lambda: self._faults.latency_s < math.inf)
            return self._faults

    def _name(self, name: ObjectName) -> str:
        return f"{self._namespace}/{name.group}/{name.key.hex()}"

    def raw(self, name: ObjectName) -> bytes | None:
        """The stored bytes."""
        with self._lock:
            return self._objects.get(self._name(name))

    def set_raw(self, name: ObjectName, data: bytes) -> None:
        """Put these bytes in the place of an object."""
        with self._lock:
            self._objects[self._name(name)] = data
        self._room.add({self._name(name): len(data)})

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Answer after the latency, without faults."""
        faults = self._begin()
        if faults.latency_s:
            self._sleep(faults.latency_s)
        with self._lock:
            return [
                ObjectStatus.OK if self._name(name) in self._objects else ObjectStatus.MISSING
                for name in names
            ]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Copy objects, or damage them on the way."""
        return self._each(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Copy pages from the arena."""
        return self._each(refs, deadline_s, self._put)

    def _each(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        operation: Callable[[ObjectRef], ObjectStatus],
    ) -> list[ObjectStatus]:
        faults = self._begin()
        earliest_s = self._clock() + faults.latency_s
        statuses = [
            self._fault(faults, ref, earliest_s, deadline_s) or operation(ref) for ref in refs
        ]
        self._room.touch(self._name(ref.name) for ref in reversed(refs))
        return statuses

    def _fault(
        self, faults: Faults, ref: ObjectRef, earliest_s: float, deadline_s: float
    ) -> ObjectStatus | None:
        """Wait for an object's turn on the link; returns the failure that was drawn, or None."""
        with self._lock:
            delay_s = self._random.uniform(0.0, faults.max_delay_s)
            is_failure = self._random.random() < faults.failure_fraction
            now_s = self._clock()

            # A late object leaves the link to those that are in time.
            sent_s = max(earliest_s, self._link_free_s) + len(ref.page) / faults.max_bytes_per_s
            delay_s += max(0.0, sent_s - now_s)
            is_late = now_s + delay_s >= deadline_s
            if is_late:
                delay_s = max(0.0, deadline_s - now_s)
            else:
                self._link_free_s = sent_s

        if delay_s:
            self._sleep(delay_s)
        if is_late:
            return ObjectStatus.TIMED_OUT
        return ObjectStatus.IO_ERROR if is_failure else None

    def _get(self, ref: ObjectRef) -> ObjectStatus:
        name = self._name(ref.name)
        with self._lock:
            data = self._objects.get(name)
            if data is None:
                return ObjectStatus.MISSING
            if self._random.random() < self._faults.corrupt_fraction:
                data = corrupt(data, self._random.choice(list(Corruption)))
                self._counts.add("objects_corrupted")
            self._counts.add("objects_read")

        status = compare_length(len(data), len(ref.page))
        if status is ObjectStatus.OK:
            ref.fill(data)
        return status

    def _put(self, ref: ObjectRef) -> ObjectStatus:
        name = self._name(ref.name)
        with self._lock:
            if name in self._objects:
                return ObjectStatus.OK
            if self._faults.refuses_writes:
                return ObjectStatus.FULL

        with self._room.reserve([len(ref.page)]) as reservation:
            if not reservation.sizes:
                return ObjectStatus.FULL
            with self._lock:
                self._objects.setdefault(name, bytes(ref.page))
                self._counts.add("objects_written")
            self._room.settle(reservation, {name: len(ref.page)})
        return ObjectStatus.OK

    def _remove(self, names: Sequence[str]) -> Sequence[str]:
        """Delete objects for the room; returns those that could not be."""
        with self._lock:
            if self._faults.refuses_deletes:
                return names
            for name in names:
                self._objects.pop(name, None)
        return ()

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Forget the objects with these names."""
        with self._lock:
            return [self._delete(self._name(name)) for name in names]

    def _delete(self, name: str) -> ObjectStatus:
        self._room.forget([name])
        return ObjectStatus.MISSING if self._objects.pop(name, None) is None else ObjectStatus.OK

    def clear(self) -> ObjectStatus:
        """Forget every object of the namespace."""
        with self._lock:
            for name in [name for name in self._objects if name.startswith(f"{self._namespace}/")]:
                self._delete(name)
        return ObjectStatus.OK

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes; no times are kept."""
        with self._lock:
            found = [self._objects.get(self._name(name)) for name in names]
        return [None if data is None else ObjectInfo(len(data), None) for data in found]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """Let what is known of their next use decide which objects go first."""
        self._room.retain(map(self._name, names), user, retention)

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces, and counters."""
        return self._room.figures() | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum over objects."""
        self._room.check()

    def tidy(self) -> bool:
        """Evict down to the low mark."""
        return self._room.trim()

    def close(self) -> None:
        """Keep the objects for the next `open`."""
