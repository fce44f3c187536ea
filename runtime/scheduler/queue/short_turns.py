"""Take turns beside a long prompt: the shortest of those that wait goes first."""

from collections.abc import Iterator

from raydix.ids import RequestId
from raydix.runtime.scheduler.prompt_shares import PromptWork, may_join
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey, RequestOrder

_Size = tuple[int, int]
"""A request's priority, and the number of bits in its number of tokens to compute."""


class ShortTurns:
    """Owns: some requests by how much of them is to be computed, within a factor of two.

    Those of one size and priority are in order. To find whose turn it is takes a look at the first
    of each size and priority, however many wait.
    """

    def __init__(self) -> None:
        self._orders: dict[_Size, RequestOrder] = {}
        self._size_of: dict[RequestId, _Size] = {}

    def __iter__(self) -> Iterator[RequestState]:
        return (request for order in self._orders.values() for request in order)

    def put(self, request: RequestState, key: OrderKey, num_tokens: int) -> None:
        """Enter a request, or move it."""
        self.discard(request.request_id)
        size = request.submit.priority, num_tokens.bit_length()
        self._size_of[request.request_id] = size
        self._orders.setdefault(size, RequestOrder()).put(request, key)

    def discard(self, name: RequestId) -> None:
        """Take a request out, if it is here."""
        size = self._size_of.pop(name, None)
        if size is None:
            return
        self._orders[size].discard(name)
        if not self._orders[size]:
            del self._orders[size]

    def first(self, most_tokens: float, long: PromptWork) -> RequestState | None:
        """The first of the shortest requests that may join a long prompt's steps (`may_join`)."""
        found: tuple[int, OrderKey, RequestState] | None = None
        for (priority, bits), order in self._orders.items():
            # The longest of them would have to be short enough: nobody hides another one.
            key, request = order.first_entry()
            is_short = 2**bits - 1 <= most_tokens
            if is_short and may_join(long, priority=priority, level=key.level):
                found = min(found or (bits, key, request), (bits, key, request))
        return None if found is None else found[2]
