"""Orders that HostMemory has given to the storage actor."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from raydix.ids import BatchId
from raydix.runtime.cache.circuit_breaker import CircuitBreaker
from raydix.runtime.cache.host_events import HostEffect, StorageOrder, StorageSettings, ToStorage
from raydix.runtime.cache.missing_objects import MissingObjects
from raydix.runtime.messages.host import CancelBatch, ObjectsDone, ObjectStatus

_TROUBLE = (ObjectStatus.IO_ERROR, ObjectStatus.TIMED_OUT)


@dataclass(slots=True)
class _Order:
    overdue_at_s: float
    is_overdue: bool = False


class StorageOrders:
    """Owns: whether L3 is in use and by which process, the unanswered batches, their numbers, the circuit breaker, and
    what L3 was seen to lack.

    In use without a process, a storage actor is being made. A process that is not in use answers what it was asked.
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
        self.breaker = self._new_breaker()

    def _new_breaker(self) -> CircuitBreaker:
        settings = self._settings
        return CircuitBreaker(settings.breaker_failures, settings.breaker_backoff_s, settings.breaker_max_backoff_s)

    def attach(self, pid: int) -> None:
        """A storage actor is there; its backend is trusted anew."""
        self.is_in_use = True
        self.pid = pid
        self.missing.forget_all()
        self.breaker = self._new_breaker()

    def retire(self) -> None:
        """No order is given any more, until another storage actor attaches."""
        self.is_in_use = False

    def lose(self) -> None:
        """The storage actor is gone; nothing it was asked will be answered."""
        self.pid = None
        self._orders.clear()

    def is_admitting(self, now_s: float) -> bool:
        """Whether an order may be given now."""
        return self.is_in_use and self.pid is not None and self.breaker.is_admitting(now_s)

    def is_overdue(self, batch_id: BatchId) -> bool:
        """Whether an unanswered batch has been given up on."""
        return self._orders[batch_id].is_overdue

    def send(self, make_order: Callable[[BatchId, float], StorageOrder], now_s: float) -> BatchId:
        """Send the order that `make_order(batch_id, deadline_s)` makes."""
        batch_id = BatchId(self._next_id)
        self._next_id += 1
        deadline_s = self._settings.deadline_s
        self._orders[batch_id] = _Order(now_s + deadline_s + self._settings.overdue_margin_s)
        self.breaker.start()
        self._effects.append(ToStorage(make_order(batch_id, deadline_s)))
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
        num_failed = sum(done.statuses.count(status) for status in _TROUBLE)
        num_neutral = done.statuses.count(ObjectStatus.CANCELLED) + done.statuses.count(ObjectStatus.FULL)
        if 2 * num_failed >= max(1, len(done.statuses)):
            self.breaker.fail(now_s)
        elif num_neutral == len(done.statuses):
            self.breaker.abstain(now_s)
        else:
            self.breaker.succeed()
        return True

    def take_overdue(self, now_s: float) -> list[BatchId]:
        """Batches that have become overdue since the last call; each counts as one failure."""
        late = [
            batch_id for batch_id, order in self._orders.items() if not order.is_overdue and order.overdue_at_s <= now_s
        ]
        for batch_id in late:
            self._orders[batch_id].is_overdue = True
            self._counters["l3_overdue_batches"] += 1
            self.breaker.fail(now_s)
        return late

    @property
    def num_unanswered(self) -> int:
        """Batches without an answer."""
        return len(self._orders)

    @property
    def next_overdue_s(self) -> float | None:
        """When the next batch becomes overdue."""
        return min((order.overdue_at_s for order in self._orders.values() if not order.is_overdue), default=None)
