"""Requests of a lane that is to sleep: they are taken off it, and wait for the wake."""

from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane


def park(lane: Lane, life: Transitions) -> None:
    """Take all requests off a lane, with their tokens: they wait until they get one again.

    What they have computed stays cached.
    """
    for request in list(lane.running.values()):
        life.requeue(request)
    places = lane.waiting.places()
    for _, request in places:
        lane.promotions.end(request.request_id)
        lane.waiting.discard(request)
    life.displace(places)
