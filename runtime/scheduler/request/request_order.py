"""Requests in an order that stays the same while they wait."""

import bisect
from collections.abc import Iterator
from typing import NamedTuple

from raydix.ids import RequestId
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings


class OrderKey(NamedTuple):
    """A place in the queue, the smallest first: no two requests have the same."""

    level: int
    span: int
    """The number of the span of arrivals within which longer matches are preferred."""
    num_unpreferred: int
    """The number of cached pages, made negative, so that longer matches come first."""
    arrival_s: float
    serial: int


def level_of(request: RequestState, settings: SchedulerSettings) -> int:
    """A request's priority, one worse for each whole `ageing_s` that it comes later."""
    return request.submit.priority + int(request.arrival_s // settings.ageing_s)


def order_key(
    request: RequestState, settings: SchedulerSettings, num_cached_pages: int
) -> OrderKey:
    """Where a request stands among those that wait; the smallest goes first.

    A request that comes a whole `ageing_s` later starts one level behind, so nobody is overtaken
    for ever, and no key changes while time passes. Within a level and a span of arrivals `lpm`
    prefers long matches, the others early arrivals; `routing_key` then chooses by what runs, as
    `RoutingTurns` says, but lookups in L3 go by arrival under it, too.
    """
    level = level_of(request, settings)
    span = num_preferred = 0
    if settings.policy is SchedulingPolicy.LPM:
        span, num_preferred = int(request.arrival_s // settings.lpm_span_s), num_cached_pages
    return OrderKey(level, span, -num_preferred, request.arrival_s, request.serial)


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
