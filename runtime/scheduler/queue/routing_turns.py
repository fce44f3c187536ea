"""Take turns in which requests with the routing key of those that run go first."""

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey, RequestOrder

_Bucket = tuple[int, str]
"""A level and a routing key, whose requests wait in one bucket."""
_NO_KEY = ""
"""The routing key that stands for none, and sorts before all others."""


class RunningKeys:
    """Owns: how many running requests have each routing key."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._order: list[tuple[int, str]] = []
        """Pairs of a count, made negative, and its key, in ascending order: largest count first."""

    def __iter__(self) -> Iterator[str]:
        return (key for _, key in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, key: str | None) -> None:
        """Note that a request with this key runs."""
        self._change(key, 1)

    def remove(self, key: str | None) -> None:
        """Note that a request with this key runs no more."""
        self._change(key, -1)

    def _change(self, key: str | None, difference: int) -> None:
        if key is None:
            return
        count = self._counts[key]
        if count:
            del self._order[bisect.bisect_left(self._order, (-count, key))]

        self._counts[key] += difference
        if self._counts[key]:
            bisect.insort(self._order, (-self._counts[key], key))
        else:
            del self._counts[key]

    def check(self, keys: Iterable[str | None]) -> None:
        """Raise AccountingError unless `keys` are those of the requests that run."""
        counts = Counter(key for key in keys if key is not None)
        if counts != self._counts or self._order != sorted((-n, key) for key, n in counts.items()):
            raise AccountingError(
                f"{self._counts.total()} requests with routing keys are counted, "
                f"{counts.total()} run"
            )


class RoutingTurns:
    """Owns: some requests in an order that changes with the keys of those that run.

    Levels come first, so ageing bounds for how long a key can wait. Within a level come the keys
    that run: first the key of most running requests, among equals by name. Then come requests
    without a key, and then the other keys by name. Requests of one key come as they arrive; all do
    while no request with a key runs. To find whose turn it is takes a look at each key that runs.
    """

    def __init__(self, running: RunningKeys) -> None:
        self._running = running
        self._all = RequestOrder()
        self._buckets: dict[_Bucket, RequestOrder] = {}
        self._bucket_of: dict[RequestId, _Bucket] = {}
        self._keys: dict[int, list[str]] = {}
        """The routing keys of each level's buckets, sorted."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: RequestId) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._all)

    def put(self, request: RequestState, key: OrderKey) -> None:
        """Enter a request, or move it."""
        self.discard(request.request_id)
        self._all.put(request, key)
        bucket = key.level, request.submit.routing_key or _NO_KEY
        if bucket not in self._buckets:
            self._buckets[bucket] = RequestOrder()
            bisect.insort(self._keys.setdefault(key.level, []), bucket[1])
        self._buckets[bucket].put(request, key)
        self._bucket_of[request.request_id] = bucket

    def discard(self, name: RequestId) -> None:
        """Take a request out, if it is in."""
        bucket = self._bucket_of.pop(name, None)
        if bucket is None:
            return
        self._all.discard(name)
        self._buckets[bucket].discard(name)
        if not self._buckets[bucket]:
            del self._buckets[bucket]
            self._drop_key(*bucket)

    def _drop_key(self, level: int, key: str) -> None:
        keys = self._keys[level]
        del keys[bisect.bisect_left(keys, key)]
        if not keys:
            del self._keys[level]

    def first(self) -> RequestState | None:
        """The request whose turn it is."""
        level = self._all.first_level()
        if level is None or not self._running:
            return self._all.first()
        # If no key of the level runs, all are others, and come by name.
        keys = (key for key in self._running if (level, key) in self._buckets)
        return self._buckets[level, next(keys, self._keys[level][0])].first()
