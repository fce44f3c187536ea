"""Orders that HostMemory has given to the storage actor."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import floor, log2

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId
from raydix.runtime.cache.host.answer_times import AnswerTimes
from raydix.runtime.cache.host.circuit_breaker import BreakerState, CircuitBreaker
from raydix.runtime.cache.host.events import HostEffect, StorageOrder, ToStorage
from raydix.runtime.cache.host.missing_objects import MissingObjects
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.unanswered import ObjectName, Order, OrderKind, Unanswered
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
from raydix.runtime.messages.retention import RetainObjects

_TROUBLE = (ObjectStatus.IO_ERROR, ObjectStatus.TIMED_OUT)
_NEUTRAL = (ObjectStatus.CANCELLED, ObjectStatus.FULL)
_NO_ANSWER = (*_TROUBLE, *_NEUTRAL)
_MAX_OVERDUE = 8
"""A backend that owes so many overdue answers is probed again once it has given one of them: until
then its threads are taken, and a probe would wait behind them. Only a new actor has others.
"""
_SLOW_S = 0.125
"""Seconds within which an answer is worth the wait of any request."""


_FOR_READING = (OrderKind.EXISTS, OrderKind.READ)
_WORST_FIRST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)


class StorageOrders:
    """Owns: whether L3 is in use, its process and connection, the unanswered batches and their
    numbers, the circuit breakers, and what L3 was seen to lack.

    While L3 is in use without a process, a storage actor is being made. A process that is no longer
    in use still answers what it was asked. No request waits for a backend that does not answer: as
    soon as one question or read is overdue, all others of its kind are given up as well.

    An answer that comes after that says how long answers take: if that is as long as an answer may
    take at all, L3 is used again at once, and waited for as long as that.
    """

    def __init__(
        self,
        settings: StorageSettings,
        page_bytes: Sequence[int],
        effects: list[HostEffect],
        counters: Counter[str],
        *,
        is_in_use: bool,
    ) -> None:
        """Start without a storage actor. `page_bytes`: per KV group."""
        self._settings = settings
        self._page_bytes = page_bytes
        self.batch_pages = tuple(map(settings.pages_of_batch, page_bytes))
        """The most pages of one read or write, per KV group."""
        self._effects = effects
        self._counters = counters

        self.is_in_use = is_in_use
        self.pid: int | None = None
        self.connection: ConnectionId | None = None

        self._orders: dict[BatchId, Order] = {}
        self._unanswered = {kind: Unanswered() for kind in OrderKind}
        self._next_batch_id = BatchId(0)

        self.missing = MissingObjects(settings.missing_ttl_s, settings.max_missing_names)
        self._deadline_s = settings.patience_s
        """The deadline in seconds that the storage actor is given for a read or a write."""
        self._trust_anew()

        self._last_names: dict[OrderKind, ObjectName] = {}
        self._good_names: dict[OrderKind, ObjectName] = {}
        """The last object for which there was an answer, by kind."""
        self._num_probes = 0

    def _trust_anew(self) -> None:
        settings = self._settings
        limits = (
            settings.breaker_failures,
            settings.breaker_backoff_s,
            settings.breaker_max_backoff_s,
        )
        self._breakers = {kind: CircuitBreaker(*limits) for kind in OrderKind}

        in_time_s, transfer_s = self._deadline_s, self._deadline_s + settings.overdue_margin_s
        exists_s = min(settings.exists_deadline_s, in_time_s)
        read_s = min(settings.min_read_patience_s, transfer_s)
        write_s = max(settings.max_write_patience_s, transfer_s)
        self._times = {
            OrderKind.EXISTS: AnswerTimes(exists_s, in_time_s, first_s=exists_s),
            OrderKind.READ: AnswerTimes(read_s, transfer_s, first_s=transfer_s),
            OrderKind.WRITE: AnswerTimes(transfer_s, write_s, first_s=transfer_s),
        }
        self._busy_at_s = dict.fromkeys(OrderKind, 0.0)
        """The time at which an order was last given or answered, by kind."""
        self.answer_s = 0.0
        """The least seconds that a question and a read take these days; 0 if short or not known. A
        power of two, so that it seldom changes.
        """

    def attach(self, connection: ConnectionId, pid: int, patience_s: float | None = None) -> None:
        """Use a storage actor that has attached; its backend is trusted anew.

        `patience_s`: how long its answers may take; None: as the settings say.
        """
        self.is_in_use = True
        self.connection = connection
        self.pid = pid
        self.missing.forget_all()
        self._deadline_s = self._settings.patience_s if patience_s is None else patience_s
        self._trust_anew()

    def retire(self) -> None:
        """Give no order any more, until another storage actor attaches."""
        self.is_in_use = False

    def lose(self) -> None:
        """Forget the storage actor, which is gone: nothing it was asked will be answered."""
        self.pid = None
        self.connection = None
        self._orders.clear()
        self._unanswered = {kind: Unanswered() for kind in OrderKind}

    @property
    def is_readable(self) -> bool:
        """Whether L3 is asked and read; if not, probes and late answers show when it is again."""
        if not self.is_in_use or self.pid is None:
            return False
        return all(self._breakers[kind].state is BreakerState.CLOSED for kind in _FOR_READING)

    def is_writable(self, now_s: float) -> bool:
        """Whether a write may be ordered now. What cannot be read is not worth writing."""
        return self.is_readable and self._breakers[OrderKind.WRITE].is_admitting(now_s)

    @property
    def is_write_probe(self) -> bool:
        """Whether the next write is to find out if the backend takes any."""
        return self._breakers[OrderKind.WRITE].state is not BreakerState.CLOSED

    @property
    def write_retry_at_s(self) -> float | None:
        """The time at which failed writes may be tried again; None if not by time alone."""
        return self._breakers[OrderKind.WRITE].retry_at_s if self.is_readable else None

    def is_probe_due(self, kind: OrderKind, now_s: float) -> bool:
        """Whether one order of this kind is to find out if the backend is back."""
        due_s = self.probe_due_s(kind)
        return due_s is not None and due_s <= now_s

    def probe_due_s(self, kind: OrderKind) -> float | None:
        """The time at which the next probe of this kind is due; None if none is."""
        unanswered = self._unanswered[kind]
        if not self.is_in_use or self.pid is None or unanswered.num_overdue >= _MAX_OVERDUE:
            return None
        if self._breakers[kind].state is BreakerState.CLOSED:
            # No request waits for a slow L3, so that none may notice when it has recovered.
            has_asked = kind in self._last_names and not unanswered.current
            is_due = self.answer_s > 0.0 and has_asked
            return self._busy_at_s[kind] + self._settings.recheck_interval_s if is_due else None
        return self._breakers[kind].retry_at_s

    def take_probe_name(self, kind: OrderKind) -> ObjectName:
        """The name of an object that was asked about or read before; there must be one.

        In turns the last one, and the last one for which there was an answer: it may be this very
        object, and nothing else, that the backend cannot read.
        """
        self._num_probes += 1
        last = self._last_names[kind]
        return last if self._num_probes % 2 else self._good_names.get(kind, last)

    def figures(self) -> dict[str, str | float]:
        """Figures of the breakers, and of how long answers may take.

        If L3 is left alone, for what, why and since when.
        """
        figures: dict[str, str | float] = {
            "l3_breaker": self.breaker_state.value if self.is_in_use else "none",
            "l3_breaker_trips": self.num_trips,
        }
        for kind, times in self._times.items():
            figures[f"l3_{kind.value}_patience_s"] = times.patience_s
        for kind, breaker in self._breakers.items():
            if self.is_in_use and breaker.cause is not None and breaker.off_since_s is not None:
                figures["l3_off_kind"] = kind.value
                figures["l3_off_cause"] = breaker.cause.value
                figures["l3_off_since_s"] = breaker.off_since_s
                break
        return figures

    @property
    def breaker_state(self) -> BreakerState:
        """The worst state of the breakers of all kinds."""
        states = [breaker.state for breaker in self._breakers.values()]
        return min(states, key=_WORST_FIRST.index)

    @property
    def num_trips(self) -> int:
        """The number of times that a kind of order was given up."""
        return sum(breaker.num_trips for breaker in self._breakers.values())

    def is_overdue(self, batch_id: BatchId) -> bool:
        """Whether an unanswered batch has been given up on."""
        return self._orders[batch_id].is_overdue

    def ask_exists(self, group: int, keys: bytes, now_s: float) -> BatchId:
        """Ask which of these objects exist."""
        # Questions wait for each other, and some backends ask for each object by itself.
        num_pages = len(keys) // KEY_BYTES
        num_ahead = self._unanswered[OrderKind.EXISTS].size
        allowed_s = self._settings.exists_deadline_per_page_s * (num_ahead + num_pages)
        order = Order(
            kind=OrderKind.EXISTS,
            sent_s=now_s,
            group=group,
            keys=keys,
            size=num_pages,
            allowed_s=allowed_s,
        )
        batch_id = self._start(order)
        deadline_s = self._patience_s(order)
        self._send(AskExists(batch_id=batch_id, keys=keys, group=group, deadline_s=deadline_s))
        return batch_id

    def read(self, group: int, keys: bytes, host_page_ids: Int32Array, now_s: float) -> BatchId:
        """Read objects into FILLING pages, whose generations are in the table."""
        batch_id = self._start(self._transfer(OrderKind.READ, group, keys, now_s))
        self._send(
            ReadObjects(
                batch_id=batch_id,
                keys=keys,
                host_page_ids=host_page_ids,
                group=group,
                deadline_s=self._deadline_s,
            )
        )
        return batch_id

    def write(self, make_order: Callable[[BatchId, float], WriteObjects], now_s: float) -> BatchId:
        """Send the order that `make_order(batch_id, deadline_s)` makes."""
        batch_id = self._next_batch_id
        message = make_order(batch_id, self._deadline_s)
        group, keys = message.group, message.keys
        self._start(self._transfer(OrderKind.WRITE, group, keys, now_s))
        self._send(message)
        return batch_id

    def _transfer(self, kind: OrderKind, group: int, keys: bytes, now_s: float) -> Order:
        """A read or write of these pages, which shares what carries it with others of its kind."""
        num_bytes = len(keys) // KEY_BYTES * self._page_bytes[group]
        num_in_all = self._unanswered[kind].size + num_bytes
        return Order(
            kind=kind,
            sent_s=now_s,
            group=group,
            keys=keys,
            size=num_bytes,
            allowed_s=self._settings.transfer_s_per_byte * num_in_all,
        )

    def clear(self, now_s: float) -> BatchId:
        """Have every object of the namespace removed; nothing is written meanwhile."""
        order = Order(kind=OrderKind.WRITE, sent_s=now_s)
        batch_id = self._start(order)
        self._send(DeleteObjects(batch_id=batch_id))
        return batch_id

    def retain(self, hints: Sequence[RetainObjects]) -> None:
        """Tell the storage actor, if there is one, when objects are used again."""
        if self.is_in_use and self.pid is not None:
            for hint in hints:
                self._send(hint)

    def _send(self, order: StorageOrder) -> None:
        assert self.connection is not None
        self._effects.append(ToStorage(self.connection, order))

    def _patience_s(self, order: Order) -> float:
        if not order.keys:
            return self._settings.clear_patience_s
        return self._times[order.kind].patience_s + order.allowed_s

    def _start(self, order: Order) -> BatchId:
        batch_id = self._next_batch_id
        self._next_batch_id = BatchId(batch_id + 1)
        self._orders[batch_id] = order
        self._unanswered[order.kind].add(batch_id, order, order.sent_s + self._patience_s(order))
        self._breakers[order.kind].start()
        self._busy_at_s[order.kind] = order.sent_s
        if order.keys:
            self._last_names[order.kind] = order.name(0)
        return batch_id

    def cancel(self, batch_id: BatchId) -> None:
        """Ask for what is left of a batch not to be done."""
        self._send(CancelBatch(batch_id=batch_id))

    def finish(self, done: ObjectsDone, now_s: float) -> Order:
        """Take an answer; returns the order. Raises AccountingError if nothing was asked."""
        order = self._orders.pop(done.batch_id, None)
        if order is None:
            raise AccountingError(f"storage answers batch {done.batch_id}, which it does not owe")

        self._unanswered[order.kind].remove(done.batch_id, order)
        self._busy_at_s[order.kind] = now_s
        breaker = self._breakers[order.kind]
        num_failed = sum(done.statuses.count(status) for status in _TROUBLE)
        num_neutral = sum(done.statuses.count(status) for status in _NEUTRAL)

        if 2 * num_failed >= max(1, len(done.statuses)):
            # Failures of long ago say nothing of today.
            if not order.is_overdue:
                breaker.fail(now_s)
        elif num_failed + num_neutral < len(done.statuses):
            self._take_success(order, done.statuses, now_s)
        elif not order.is_overdue:
            breaker.abstain(now_s)
        return order

    def _take_success(self, order: Order, statuses: bytes, now_s: float) -> None:
        breaker, times = self._breakers[order.kind], self._times[order.kind]
        time_s = now_s - order.sent_s
        if order.is_overdue and time_s > times.longest_s + order.allowed_s:
            # It answers, though too late. How long it takes today, a probe shows.
            breaker.hasten(now_s)
            return

        if order.keys:
            times.note(time_s, order.allowed_s)
            usual_s = sum(self._times[kind].usual_s for kind in _FOR_READING)
            self.answer_s = 2.0 ** floor(log2(usual_s)) if usual_s >= _SLOW_S else 0.0
            first = next(i for i, status in enumerate(statuses) if status not in _NO_ANSWER)
            self._good_names[order.kind] = order.name(first)
        if order.is_overdue:
            breaker.close()
        else:
            breaker.succeed()

    def take_overdue(self, now_s: float) -> list[BatchId]:
        """Take the batches to be given up now: late ones, and then all others of their kind."""
        given_up: list[BatchId] = []
        for kind, unanswered in self._unanswered.items():
            # Late answers to others may have come since the order was given.
            while (order := unanswered.first_due(now_s)) is not None:
                overdue_at_s = order.sent_s + self._patience_s(order)
                if overdue_at_s <= now_s:
                    self._breakers[kind].trip(now_s)
                    given_up += unanswered.give_up()
                else:
                    unanswered.postpone(overdue_at_s)
        self._counters["l3_overdue_batches"] += len(given_up)
        return given_up

    @property
    def num_unanswered(self) -> int:
        """The number of batches without an answer."""
        return len(self._orders)

    @property
    def next_overdue_s(self) -> float | None:
        """The time at which the next batch becomes overdue."""
        times_s = (unanswered.next_overdue_s for unanswered in self._unanswered.values())
        return min((time_s for time_s in times_s if time_s is not None), default=None)
