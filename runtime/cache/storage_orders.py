"""Orders that HostMemory has given to the storage actor."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from raydix.ids import BatchId, PageKey
from raydix.runtime.cache.circuit_breaker import BreakerState, CircuitBreaker
from raydix.runtime.cache.host_events import HostEffect, StorageSettings, ToStorage
from raydix.runtime.cache.missing_objects import MissingObjects
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import (
    KEY_BYTES,
    CancelBatch,
    DeleteObjects,
    FindObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)

_TROUBLE = (ObjectStatus.IO_ERROR, ObjectStatus.TIMED_OUT)
_READ_PATIENCE = 4
"""A read may take so many times as long as the slowest of the last `_NUM_READ_TIMES`."""
_NUM_READ_TIMES = 16
_MAX_OVERDUE = 8
"""A backend that owes so many answers is asked for no further sign of life."""


class OrderKind(Enum):
    """Each kind can fail by itself: a mount may still find what it cannot read."""

    SEARCH = "search"
    READ = "read"
    WRITE = "write"


_WORST_FIRST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)


@dataclass(slots=True)
class _Order:
    kind: OrderKind
    sent_s: float
    overdue_at_s: float
    num_pages: int
    """Of a search."""
    is_overdue: bool = False


class StorageOrders:
    """Owns: whether L3 is in use and by which process, the unanswered batches, their numbers, the circuit breakers, and
    what L3 was seen to lack.

    In use without a process, a storage actor is being made. A process that is not in use answers what it was asked.
    No request waits for a backend that does not answer: the first overdue search or read takes all others with it.
    """

    def __init__(
        self, settings: StorageSettings, effects: list[HostEffect], counters: Counter[str], *, is_in_use: bool
    ) -> None:
        self._settings = settings
        self.is_in_use = is_in_use
        self._effects = effects
        self._counters = counters
        self._orders: dict[BatchId, _Order] = {}
        self._next_id = 0
        self.pid: int | None = None
        self.missing = MissingObjects(settings.missing_ttl_s, settings.max_missing_names)
        self._breakers = self._new_breakers()
        self._read_times_s: deque[float] = deque(maxlen=_NUM_READ_TIMES)
        self._last_names: dict[OrderKind, tuple[int, PageKey]] = {}

    def _new_breakers(self) -> dict[OrderKind, CircuitBreaker]:
        settings = self._settings
        limits = (settings.breaker_failures, settings.breaker_backoff_s, settings.breaker_max_backoff_s)
        return {kind: CircuitBreaker(*limits) for kind in OrderKind}

    def attach(self, pid: int) -> None:
        """A storage actor is there; its backend is trusted anew."""
        self.is_in_use = True
        self.pid = pid
        self.missing.forget_all()
        self._breakers = self._new_breakers()
        self._read_times_s.clear()

    def retire(self) -> None:
        """No order is given any more, until another storage actor attaches."""
        self.is_in_use = False

    def lose(self) -> None:
        """The storage actor is gone; nothing it was asked will be answered."""
        self.pid = None
        self._orders.clear()

    @property
    def is_readable(self) -> bool:
        """Whether searches and reads are ordered; probes alone find out when they are again."""
        are_closed = all(
            self._breakers[kind].state is BreakerState.CLOSED for kind in (OrderKind.SEARCH, OrderKind.READ)
        )
        return self.is_in_use and self.pid is not None and are_closed

    def is_writable(self, now_s: float) -> bool:
        """Whether a write may be ordered now. What cannot be read is not worth writing."""
        return self.is_readable and self._breakers[OrderKind.WRITE].is_admitting(now_s)

    @property
    def is_write_probe(self) -> bool:
        """Whether the next write is to find out if the backend takes any."""
        return self._breakers[OrderKind.WRITE].state is not BreakerState.CLOSED

    @property
    def write_retry_at_s(self) -> float | None:
        """When writes that failed may be tried again; None if time alone changes nothing."""
        return self._breakers[OrderKind.WRITE].retry_at_s if self.is_readable else None

    def is_probe_due(self, kind: OrderKind, now_s: float) -> bool:
        """Whether one order of this kind is to find out if the backend is back."""
        due_s = self.probe_due_s(kind)
        return due_s is not None and due_s <= now_s

    def probe_due_s(self, kind: OrderKind) -> float | None:
        """When the next probe of this kind is due; None if none is."""
        num_overdue = sum(order.is_overdue and order.kind is kind for order in self._orders.values())
        if not self.is_in_use or self.pid is None or num_overdue >= _MAX_OVERDUE:
            return None
        return self._breakers[kind].retry_at_s

    def last_name(self, kind: OrderKind) -> tuple[int, PageKey]:
        """Group and key of an object that was last searched or read; there has been one."""
        return self._last_names[kind]

    @property
    def breaker_state(self) -> BreakerState:
        """The worst of all kinds."""
        states = [breaker.state for breaker in self._breakers.values()]
        return min(states, key=_WORST_FIRST.index)

    @property
    def num_trips(self) -> int:
        """How often a kind of order was given up."""
        return sum(breaker.num_trips for breaker in self._breakers.values())

    def is_overdue(self, batch_id: BatchId) -> bool:
        """Whether an unanswered batch has been given up on."""
        return self._orders[batch_id].is_overdue

    def find(self, group: int, keys: bytes, now_s: float) -> BatchId:
        """Search for objects. Searches wait for each other, and some backends ask for each object by itself."""
        unanswered = (order.num_pages for order in self._orders.values() if order.kind is OrderKind.SEARCH)
        num_pages = len(keys) // KEY_BYTES
        per_page_s = self._settings.search_deadline_per_page_s
        deadline_s = self._settings.search_deadline_s + per_page_s * (num_pages + sum(unanswered))
        batch_id = self._start(OrderKind.SEARCH, now_s, deadline_s, num_pages)
        self._last_names[OrderKind.SEARCH] = (group, PageKey(keys[:KEY_BYTES]))
        self._effects.append(ToStorage(FindObjects(batch_id=batch_id, keys=keys, group=group, deadline_s=deadline_s)))
        return batch_id

    def read(self, group: int, keys: bytes, host_page_ids: Int32Array, now_s: float) -> BatchId:
        """Read objects into FILLING pages, whose generations are in the table."""
        longest_s = self._settings.deadline_s + self._settings.overdue_margin_s
        patience_s = longest_s
        if self._read_times_s:
            usual_s = _READ_PATIENCE * max(self._read_times_s)
            patience_s = min(longest_s, max(self._settings.min_read_patience_s, usual_s))
        batch_id = self._start(OrderKind.READ, now_s, patience_s)
        self._last_names[OrderKind.READ] = (group, PageKey(keys[:KEY_BYTES]))
        self._effects.append(
            ToStorage(
                ReadObjects(
                    batch_id=batch_id,
                    keys=keys,
                    host_page_ids=host_page_ids,
                    group=group,
                    deadline_s=self._settings.deadline_s,
                )
            )
        )
        return batch_id

    def send(self, make_order: Callable[[BatchId, float], WriteObjects | DeleteObjects], now_s: float) -> BatchId:
        """Send the order that `make_order(batch_id, deadline_s)` makes."""
        deadline_s = self._settings.deadline_s
        batch_id = self._start(OrderKind.WRITE, now_s, deadline_s + self._settings.overdue_margin_s)
        self._effects.append(ToStorage(make_order(batch_id, deadline_s)))
        return batch_id

    def _start(self, kind: OrderKind, now_s: float, patience_s: float, num_pages: int = 0) -> BatchId:
        batch_id = BatchId(self._next_id)
        self._next_id += 1
        self._orders[batch_id] = _Order(kind, now_s, now_s + patience_s, num_pages)
        self._breakers[kind].start()
        return batch_id

    def cancel(self, batch_id: BatchId) -> None:
        """Ask for what is left of a batch not to be done."""
        self._effects.append(ToStorage(CancelBatch(batch_id=batch_id)))

    def finish(self, done: ObjectsDone, now_s: float) -> bool:
        """Take an answer. False: the batch is unknown, as the answer of an earlier storage actor would be."""
        order = self._orders.pop(done.batch_id, None)
        if order is None:
            self._counters["l3_unknown_batches"] += 1
            return False
        if order.is_overdue:
            return True
        breaker = self._breakers[order.kind]
        num_failed = sum(done.statuses.count(status) for status in _TROUBLE)
        num_neutral = done.statuses.count(ObjectStatus.CANCELLED) + done.statuses.count(ObjectStatus.FULL)
        if 2 * num_failed >= max(1, len(done.statuses)):
            breaker.fail(now_s)
        elif num_neutral == len(done.statuses):
            breaker.abstain(now_s)
        else:
            breaker.succeed()
            if order.kind is OrderKind.READ:
                self._read_times_s.append(now_s - order.sent_s)
        return True

    def take_overdue(self, now_s: float) -> list[BatchId]:
        """Batches that are given up on as of now: those that are late, and all others of the same kind."""
        current = {batch_id: order for batch_id, order in self._orders.items() if not order.is_overdue}
        late_kinds = {order.kind for order in current.values() if order.overdue_at_s <= now_s}
        for kind in late_kinds:
            self._breakers[kind].trip(now_s)
        given_up = [batch_id for batch_id, order in current.items() if order.kind in late_kinds]
        for batch_id in given_up:
            self._orders[batch_id].is_overdue = True
        self._counters["l3_overdue_batches"] += len(given_up)
        return given_up

    @property
    def num_unanswered(self) -> int:
        """Batches without an answer."""
        return len(self._orders)

    @property
    def next_overdue_s(self) -> float | None:
        """When the next batch becomes overdue."""
        return min((order.overdue_at_s for order in self._orders.values() if not order.is_overdue), default=None)
