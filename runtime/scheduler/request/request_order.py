"""Requests in an order that stays the same while they wait."""

import bisect
from collections.abc import Iterator
from typing import NamedTuple, assert_never

from raydix.ids import RequestId
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings

_BY_MATCH = (SchedulingPolicy.LPM, SchedulingPolicy.SHORTEST_PREFILL, SchedulingPolicy.HRRN)


class OrderKey(NamedTuple):
    """A place in the queue, the smallest first: no two requests have the same."""

    level: int
    span: int
    """The number of the span of arrivals within which longer matches are preferred."""
    measure: int
    """What the policy prefers small, see `measure_of`."""
    arrival_s: float
    serial: int


def level_of(request: RequestState, settings: SchedulerSettings) -> int:
    """A request's priority, one worse for each whole `ageing_s` that it comes later."""
    return request.submit.priority + int(request.arrival_s // settings.ageing_s)


def num_to_compute(num_tokens: int, num_cached_pages: int, page_size: int) -> int:
    """The tokens of a request that neither L1 nor L2 has: one at least, as its last is computed."""
    return max(1, num_tokens - num_cached_pages * page_size)


def measure_of(
    policy: SchedulingPolicy, num_tokens: int, num_cached_pages: int, page_size: int
) -> int:
    """What a policy prefers small of two requests of one level and span; arrival decides a tie."""
    match policy:
        case SchedulingPolicy.LPM:
            return -num_cached_pages
        case SchedulingPolicy.SHORTEST_PREFILL:
            return num_to_compute(num_tokens, num_cached_pages, page_size)
        case (
            SchedulingPolicy.FCFS
            | SchedulingPolicy.ROUTING_KEY
            | SchedulingPolicy.HRRN
            | SchedulingPolicy.DFS_WEIGHT
        ):
            return 0
        case _:
            assert_never(policy)


def goes_by_match(policy: SchedulingPolicy) -> bool:
    """Whether a request's place depends on how much of it is cached, and is chosen anew with it."""
    return policy in _BY_MATCH


def order_key(
    request: RequestState, settings: SchedulerSettings, num_cached_pages: int
) -> OrderKey:
    """Where a request stands among those that wait; the smallest goes first.

    A request that comes a whole `ageing_s` later starts one level behind, so nobody is overtaken
    for ever, and no key changes while time passes. `lpm` prefers long matches within a span of
    arrivals, too. `routing_key`, `hrrn` and `dfs_weight` choose within a level by what runs, by the
    time and by who else waits: `RoutingTurns`, `ResponseTurns` and `PrefixTurns` say how. Under
    them, this key decides ties, and lookups in L3 go by it, which is by arrival.
    """
    policy = settings.policy
    level, span = level_of(request, settings), 0
    if policy is SchedulingPolicy.LPM:
        span = int(request.arrival_s // settings.lpm_span_s)
    measure = measure_of(policy, request.num_tokens, num_cached_pages, settings.page_size)
    return OrderKey(level, span, measure, request.arrival_s, request.serial)


class RequestOrder:
    """Owns: some requests in their order.

    It is a list: with 10,000 entries a change takes microseconds.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[OrderKey, RequestState]] = []
        self._keys: dict[RequestId, OrderKey] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: RequestId) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[RequestState]:
        return (request for _, request in self._entries)

    def put(self, request: RequestState, key: OrderKey) -> None:
        """Enter a request, or move it."""
        self.discard(request.request_id)
        self._keys[request.request_id] = key
        bisect.insort(self._entries, (key, request))

    def discard(self, name: RequestId) -> None:
        """Take a request out, if it is in."""
        key = self._keys.pop(name, None)
        if key is not None:
            del self._entries[bisect.bisect_left(self._entries, (key,))]

    def first(self) -> RequestState | None:
        """The request whose turn it is; None if there is none."""
        return self._entries[0][1] if self._entries else None

    def first_entry(self) -> tuple[OrderKey, RequestState]:
        """The place and the request whose turn it is; the order must not be empty."""
        return self._entries[0]

    def first_level(self) -> int | None:
        """The level of the request whose turn it is."""
        return self._entries[0][0].level if self._entries else None
