"""Orders that HostMemory has given to the storage actor."""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId, PageKey
from raydix.runtime.cache.host.circuit_breaker import BreakerState, CircuitBreaker
from raydix.runtime.cache.host.events import HostEffect, StorageOrder, ToStorage
from raydix.runtime.cache.host.missing_objects import MissingObjects
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
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
"""A backend that owes so many overdue answers is not probed any more."""


class OrderKind(Enum):
    """Each kind can fail by itself: a mount may still find what it cannot read."""

    EXISTS = "exists"
    READ = "read"
    WRITE = "write"


_WORST_FIRST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)


@dataclass(slots=True)
class _Order:
    kind: OrderKind
    sent_s: float
    num_pages: int
    """Of a question whether objects exist."""
    is_overdue: bool = False


@dataclass(slots=True)
class _Unanswered:
    """Orders of one kind that have no answer.

    Thousands of questions may be open, so nothing here goes over all.
    """

    current: dict[BatchId, _Order] = field(default_factory=dict)
    """Those that are not overdue."""
    overdue_at_s: list[tuple[float, BatchId]] = field(default_factory=list)
    """A heap that holds every current order; its first entry is current."""
    num_overdue: int = 0
    num_pages: int = 0
    """Of all, overdue or not."""

    @property
    def next_overdue_s(self) -> float | None:
        """When the first current order becomes overdue."""
        return self.overdue_at_s[0][0] if self.overdue_at_s else None

    def add(self, batch_id: BatchId, order: _Order, overdue_at_s: float) -> None:
        self.current[batch_id] = order
        self.num_pages += order.num_pages
        heapq.heappush(self.overdue_at_s, (overdue_at_s, batch_id))

    def remove(self, batch_id: BatchId, order: _Order) -> None:
        self.num_pages -= order.num_pages
        if order.is_overdue:
            self.num_overdue -= 1
            return
        del self.current[batch_id]
        while self.overdue_at_s and self.overdue_at_s[0][1] not in self.current:
            heapq.heappop(self.overdue_at_s)

    def give_up(self) -> list[BatchId]:
        """All current orders count as overdue from now on."""
        given_up = list(self.current)
        for order in self.current.values():
            order.is_overdue = True
        self.current.clear()
        self.overdue_at_s.clear()
        self.num_overdue += len(given_up)
        return given_up


class StorageOrders:
    """Owns: whether L3 is in use, its process and connection, the unanswered batches and their
    numbers, the circuit breakers, and what L3 was seen to lack.

    While L3 is in use without a process, a storage actor is being made. A process that is no longer
    in use still answers what it was asked. No request waits for a backend that does not answer: as
    soon as one question or read is overdue, all others of its kind are given up as well.
    """

    def __init__(
        self,
        settings: StorageSettings,
        effects: list[HostEffect],
        counters: Counter[str],
        *,
        is_in_use: bool,
    ) -> None:
        self._settings = settings
        self._effects = effects
        self._counters = counters

        self.is_in_use = is_in_use
        self.pid: int | None = None
        self.connection: ConnectionId | None = None

        self._orders: dict[BatchId, _Order] = {}
        self._unanswered = {kind: _Unanswered() for kind in OrderKind}
        self._next_id = 0

        self.missing = MissingObjects(settings.missing_ttl_s, settings.max_missing_names)
        self._breakers = self._new_breakers()
        self._read_times_s: deque[float] = deque(maxlen=_NUM_READ_TIMES)
        self._last_names: dict[OrderKind, tuple[int, PageKey]] = {}

    def _new_breakers(self) -> dict[OrderKind, CircuitBreaker]:
        settings = self._settings
        limits = (
            settings.breaker_failures,
            settings.breaker_backoff_s,
            settings.breaker_max_backoff_s,
        )
        return {kind: CircuitBreaker(*limits) for kind in OrderKind}

    def attach(self, connection: ConnectionId, pid: int) -> None:
        """A storage actor is there; its backend is trusted anew."""
        self.is_in_use = True
        self.connection = connection
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
        self.connection = None
        self._orders.clear()
        self._unanswered = {kind: _Unanswered() for kind in OrderKind}

    @property
    def is_readable(self) -> bool:
        """Whether L3 is asked and read; probes alone find out when it is again."""
        are_closed = all(
            self._breakers[kind].state is BreakerState.CLOSED
            for kind in (OrderKind.EXISTS, OrderKind.READ)
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
        num_overdue = self._unanswered[kind].num_overdue
        if not self.is_in_use or self.pid is None or num_overdue >= _MAX_OVERDUE:
            return None
        return self._breakers[kind].retry_at_s

    def last_name(self, kind: OrderKind) -> tuple[int, PageKey]:
        """Group and key of an object that was last asked about or read; there has been one."""
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

    def ask_exists(self, group: int, keys: bytes, now_s: float) -> BatchId:
        """Ask which of these objects exist."""
        # Questions wait for each other, and some backends ask for each object by itself.
        num_pages = len(keys) // KEY_BYTES
        num_pages_before = self._unanswered[OrderKind.EXISTS].num_pages
        per_page_s = self._settings.exists_deadline_per_page_s
        deadline_s = self._settings.exists_deadline_s + per_page_s * (num_pages_before + num_pages)
        batch_id = self._start(OrderKind.EXISTS, now_s, deadline_s, num_pages)
        self._last_names[OrderKind.EXISTS] = (group, PageKey(keys[:KEY_BYTES]))
        self._send(AskExists(batch_id=batch_id, keys=keys, group=group, deadline_s=deadline_s))
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
        self._send(
            ReadObjects(
                batch_id=batch_id,
                keys=keys,
                host_page_ids=host_page_ids,
                group=group,
                deadline_s=self._settings.deadline_s,
            )
        )
        return batch_id

    def write(self, make_order: Callable[[BatchId, float], WriteObjects], now_s: float) -> BatchId:
        """Send the order that `make_order(batch_id, deadline_s)` makes."""
        deadline_s = self._settings.deadline_s
        batch_id = self._start(OrderKind.WRITE, now_s, deadline_s + self._settings.overdue_margin_s)
        self._send(make_order(batch_id, deadline_s))
        return batch_id

    def clear(self, now_s: float) -> BatchId:
        """Have every object of the namespace removed; nothing is written meanwhile."""
        batch_id = self._start(OrderKind.WRITE, now_s, self._settings.clear_patience_s)
        self._send(DeleteObjects(batch_id=batch_id))
        return batch_id

    def _send(self, order: StorageOrder) -> None:
        assert self.connection is not None
        self._effects.append(ToStorage(self.connection, order))

    def _start(
        self, kind: OrderKind, now_s: float, patience_s: float, num_pages: int = 0
    ) -> BatchId:
        batch_id = BatchId(self._next_id)
        self._next_id += 1
        order = self._orders[batch_id] = _Order(kind, now_s, num_pages)
        self._unanswered[kind].add(batch_id, order, now_s + patience_s)
        self._breakers[kind].start()
        return batch_id

    def cancel(self, batch_id: BatchId) -> None:
        """Ask for what is left of a batch not to be done."""
        self._send(CancelBatch(batch_id=batch_id))

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take an answer. Raises AccountingError if nothing was asked."""
        order = self._orders.pop(done.batch_id, None)
        if order is None:
            raise AccountingError(f"storage answers batch {done.batch_id}, which it does not owe")

        self._unanswered[order.kind].remove(done.batch_id, order)
        if order.is_overdue:
            return

        breaker = self._breakers[order.kind]
        num_failed = sum(done.statuses.count(status) for status in _TROUBLE)
        num_neutral = done.statuses.count(ObjectStatus.CANCELLED) + done.statuses.count(
            ObjectStatus.FULL
        )

        if 2 * num_failed >= max(1, len(done.statuses)):
            breaker.fail(now_s)
        elif num_neutral == len(done.statuses):
            breaker.abstain(now_s)
        else:
            breaker.succeed()
            if order.kind is OrderKind.READ:
                self._read_times_s.append(now_s - order.sent_s)

    def take_overdue(self, now_s: float) -> list[BatchId]:
        """Batches to be given up as of now: those that are late, and all others of their kind."""
        given_up: list[BatchId] = []
        for kind, unanswered in self._unanswered.items():
            next_s = unanswered.next_overdue_s
            if next_s is not None and next_s <= now_s:
                self._breakers[kind].trip(now_s)
                given_up += unanswered.give_up()
        self._counters["l3_overdue_batches"] += len(given_up)
        return given_up

    @property
    def num_unanswered(self) -> int:
        """Batches without an answer."""
        return len(self._orders)

    @property
    def next_overdue_s(self) -> float | None:
        """When the next batch becomes overdue."""
        times_s = (unanswered.next_overdue_s for unanswered in self._unanswered.values())
        return min((time_s for time_s in times_s if time_s is not None), default=None)
