"""L3 to L2 to L1 as a pipeline: what has come for a waiting request is loaded while the rest is on
its way.

A promotion publishes each part in the tree once it is loaded, so that the request, when its wait
ends, finds a longer match in L1. It holds a bounded share of L1 and gives way to whoever needs its
pages (`Lane.give_way`).
"""

from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.scheduler.backups import count_dropped
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.transfers import Load, Promotion

_PROMOTED_FRACTION = 2
"""Promotions together keep at most one page of L1 in so many."""


def promote(
    replica: Replica, lane: Lane, request: RequestState, lock: Lock, num_l2_pages: int
) -> bool:
    """Load the next part of a waiting request: what follows `lock` in L2, if that is enough for
    large copies.

    True: the promotion has taken over `lock`.
    """
    promotion = lane.promotions.get(request.request_id)
    num_own_pages = 0 if promotion is None else promotion.num_pages
    if promotion is not None and len(promotion.part):
        return False
    max_pages = lane.pool.num_pages // _PROMOTED_FRACTION - (
        lane.num_promoted_pages - num_own_pages
    )
    num_pages = min(num_l2_pages, max_pages - lock.num_pages)
    if (
        num_pages <= 0
        or num_pages * replica.settings.layout.payload_bytes(0) < replica.settings.min_part_bytes
    ):
        return False
    part, victims = lane.allocate_spare(num_pages)
    count_dropped(replica, victims)
    if part is None:
        return False
    lane.end_promotion(request.request_id)
    start = lock.num_pages
    promotion = Promotion(
        request_id=request.request_id,
        lock=lock,
        first_key=request.key(start, replica.settings.page_size),
        part=part,
        lease_id=None,
    )
    promotion.lease_id = replica.ask_lease(request, start, start + num_pages, promotion)
    lane.promotions[request.request_id] = promotion
    lane.computing.setdefault(promotion.first_key, request.request_id)
    return True


def lease_part(lane: Lane, promotion: Promotion, load: Load) -> None:
    """HostMemory has leased the first pages of a part, all of it as a rule: they are loaded with
    the next plan.
    """
    num_leased = len(load.page_ids)
    if num_leased < len(promotion.part):
        lane.pool.release(promotion.part[num_leased:], after_step=lane.last_step)
    promotion.part = load.page_ids
    promotion.lease_id = None
    promotion.load = load
    lane.ready_loads.append(load)


def finish_part(
    replica: Replica, lane: Lane, promotion: Promotion, load: Load, now_s: float
) -> None:
    """A part is loaded: it becomes the prefix of all who want it, unless its host pages had changed
    hands.
    """
    if load.is_stale:
        replica.counters["stale_loads"] += 1
        lane.end_promotion(promotion.request_id)
        return
    replica.counters["loaded_pages"] += len(load.page_ids)
    replica.counters["promoted_pages"] += len(load.page_ids)
    request = replica.requests[promotion.request_id]
    lane.publish_part(promotion, request, now_s)
    lane.waiting.wake(request)
