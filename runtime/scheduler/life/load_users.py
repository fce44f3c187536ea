"""Who wants what a load brings: a running request, or the promotion of one that waits."""

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
    """The load brings a part of what a waiting request will find in L1."""

    request: RequestState
    promotion: Promotion


def user_of(load: Load, lane: Lane, requests: Requests) -> Runs | IsPromoted | None:
    """Who wants a load now; None if its request has ended or started over since it was leased."""
    request = requests.living.get(load.request_id)
    if request is None:
        return None
    promotion = lane.promotions.of_load(load)
    if promotion is not None:
        return IsPromoted(request, promotion)
    return Runs(request) if request.load is load else None
