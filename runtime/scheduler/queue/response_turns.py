"""Take turns by the highest response ratio: who has waited longest for its size goes first."""

import math
from collections.abc import Iterator

from raydix.ids import RequestId
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey, RequestOrder

_CLASSES_PER_OCTAVE = 4
"""Sizes within a fifth of each other count as one: of them the first to come goes first."""


def wait_per_token(waited_s: float, num_tokens: int) -> float:
    """How long a request has waited for each token that is to be computed for it.

    A response ratio is 1 + waited time / service time. While service takes as long per token for
    all, the largest ratio is where this is largest.
    """
    return waited_s / num_tokens


def size_class(num_tokens: int) -> int:
    """The class of sizes to which this number of tokens to compute, one at least, belongs."""
    return int(_CLASSES_PER_OCTAVE * math.log2(num_tokens))


class ResponseTurns:
    """Owns: some requests in an order that changes with the time.

    Levels come first, so ageing bounds for how long anyone is overtaken. To find whose turn it is
    takes a look at the first of each size of the first level: some dozens, however many wait.
    """

    def __init__(self) -> None:
        self._all = RequestOrder()
        self._levels: dict[int, dict[int, RequestOrder]] = {}
        """The requests of each level, by class of sizes."""
        self._places: dict[RequestId, tuple[int, int]] = {}
        """The level and class of each request."""
        self._num_tokens: dict[RequestId, int] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: RequestId) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._all)

    def put(self, request: RequestState, key: OrderKey, num_tokens: int) -> None:
        """Enter a request of which so many tokens are to be computed, or move it."""
        self.discard(request.request_id)
        self._all.put(request, key)
        self._num_tokens[request.request_id] = num_tokens
        size = size_class(num_tokens)
        self._places[request.request_id] = key.level, size
        classes = self._levels.setdefault(key.level, {})
        classes.setdefault(size, RequestOrder()).put(request, key)

    def discard(self, name: RequestId) -> None:
        """Take a request out, if it is in."""
        if (place := self._places.pop(name, None)) is None:
            return
        self._all.discard(name)
        del self._num_tokens[name]

        level, size = place
        classes = self._levels[level]
        classes[size].discard(name)
        if not classes[size]:
            del classes[size]
        if not classes:
            del self._levels[level]

    def first(self, now_s: float) -> RequestState | None:
        """The request whose turn it is at this time; of equal ratios the shortest goes first."""
        level = self._all.first_level()
        if level is None:
            return None
        found: tuple[float, int, OrderKey] | None = None
        chosen: RequestState | None = None
        for order in self._levels[level].values():
            key, request = order.first_entry()
            num_tokens = self._num_tokens[request.request_id]
            worth = wait_per_token(now_s - key.arrival_s, num_tokens)
            place = -worth, num_tokens, key
            if found is None or place < found:
                found, chosen = place, request
        return chosen
