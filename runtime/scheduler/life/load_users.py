"""Who wants what a load brings: a running request, or a promotion."""

from dataclasses import dataclass

from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Load, Promotion


@dataclass(frozen=True, slots=True)
class Runs:
    """A running request has rows that wait for the load."""

    request: RequestState


@dataclass(frozen=True, slots=True)
class IsPromoted:
    """The load brings a part of what a request will find in L1 that waits, or is to come."""

    promotion: Promotion


def user_of(load: Load, lane: Lane, requests: Requests) -> Runs | IsPromoted | None:
    """Who wants a load now; None if its request has ended or started over since it was leased."""
    promotion = lane.promotions.of_load(load)
    if promotion is not None:
        return IsPromoted(promotion)
    request = requests.living.get(load.request_id)
    return Runs(request) if request is not None and request.load is load else None
