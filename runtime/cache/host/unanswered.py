"""Orders to the storage actor that have no answer yet."""

import heapq
from dataclasses import dataclass, field
from enum import StrEnum

from raydix.ids import BatchId, PageKey
from raydix.runtime.cache.page_key import KEY_BYTES

ObjectName = tuple[int, PageKey]
"""The name of an object: its KV group and its page key."""


class OrderKind(StrEnum):
    """The kind of an order. Each can fail by itself: a mount may still find what it cannot read."""

    EXISTS = "exists"
    READ = "read"
    WRITE = "write"


@dataclass(slots=True, kw_only=True)
class Order:
    """One order, and what is to be known when its answer comes."""

    kind: OrderKind
    sent_s: float
    group: int = 0
    keys: bytes = b""
    """The keys of the objects; the answer to an order without keys does not show how fast L3 is."""
    size: int = 0
    """The pages of a question whether objects exist; the bytes of a read or write of pages."""
    allowed_s: float = 0.0
    """The seconds that the order may take for its size alone."""
    is_overdue: bool = False

    def name(self, index: int) -> ObjectName:
        """The name of one of the order's objects."""
        return self.group, PageKey(self.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])


@dataclass(slots=True)
class Unanswered:
    """Owns: which orders of one kind have no answer, and which of these are given up.

    Thousands of questions may be open, so nothing here goes over all.
    """

    current: dict[BatchId, Order] = field(default_factory=dict)
    """Orders that are not overdue, by batch."""
    overdue_at_s: list[tuple[float, BatchId]] = field(default_factory=list)
    """A heap that holds every current order; its first entry is current."""
    num_overdue: int = 0
    size: int = 0
    """The sum of `Order.size` over all orders, overdue or not."""

    @property
    def next_overdue_s(self) -> float | None:
        """The time at which the first current order becomes overdue."""
        return self.overdue_at_s[0][0] if self.overdue_at_s else None

    def first_due(self, now_s: float) -> Order | None:
        """The first order to become overdue, if its time has come."""
        if not self.overdue_at_s or self.overdue_at_s[0][0] > now_s:
            return None
        return self.current[self.overdue_at_s[0][1]]

    def postpone(self, overdue_at_s: float) -> None:
        """Let the first order to become overdue have until `overdue_at_s`, which is later."""
        heapq.heapreplace(self.overdue_at_s, (overdue_at_s, self.overdue_at_s[0][1]))
        self._drop_answered()

    def add(self, batch_id: BatchId, order: Order, overdue_at_s: float) -> None:
        """Add an order that is sent."""
        self.current[batch_id] = order
        self.size += order.size
        heapq.heappush(self.overdue_at_s, (overdue_at_s, batch_id))

    def remove(self, batch_id: BatchId, order: Order) -> None:
        """Remove an order that is answered."""
        self.size -= order.size
        if order.is_overdue:
            self.num_overdue -= 1
            return
        del self.current[batch_id]
        self._drop_answered()

    def _drop_answered(self) -> None:
        while self.overdue_at_s and self.overdue_at_s[0][1] not in self.current:
            heapq.heappop(self.overdue_at_s)

    def give_up(self) -> list[BatchId]:
        """Count all current orders as overdue from now on."""
        given_up = list(self.current)
        for order in self.current.values():
            order.is_overdue = True
        self.current.clear()
        self.overdue_at_s.clear()
        self.num_overdue += len(given_up)
        return given_up
