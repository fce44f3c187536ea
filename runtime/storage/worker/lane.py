"""Which orders are under way, and which wait."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """Orders of one kind: up to `limit` under way, the others waiting, oldest first.

    One waits only while as many are under way as may be. Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_under_way = 0
        self._waiting: deque[T] = deque()

    def admit(self, order: T) -> bool:
        """Begin the order and return True; or let it wait until `replace_ended` returns it."""
        if self._num_under_way == self._limit:
            self._waiting.append(order)
            return False
        self._num_under_way += 1
        return True

    def replace_ended(self) -> T | None:
        """One has ended. Returns the oldest that waited, which is under way now; None: none did."""
        if self._waiting:
            return self._waiting.popleft()
        self._num_under_way -= 1
        return None
