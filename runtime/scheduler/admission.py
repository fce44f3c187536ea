"""Which waiting request runs next, and what is loaded for it."""

import bisect
from dataclasses import dataclass
from enum import Enum

from raydix.ids import PageKey, RequestId
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import Lock, Match
from raydix.runtime.config.policies import LoadPolicy, SchedulingPolicy
from raydix.runtime.scheduler.attribution import attribute, total_by_source
from raydix.runtime.scheduler.block_table import BlockTable
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import Phase, RequestState

_MAX_MOVED = 16
"""Waiting requests whose place is chosen anew per step: a bound on what a step costs."""


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """For pages on their way; others may go first."""
    NO_ROOM = "no room"
    """For pages or a slot; nobody may overtake it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a request would find in L1, then in L2, and how much of the latter would be loaded."""

    match: Match
    num_l2_pages: int
    num_load_pages: int

    @property
    def num_pages(self) -> int:
        """Pages that either tier holds."""
        return self.match.num_pages + self.num_l2_pages


def enqueue(replica: Replica, lane: Lane, request: RequestState, match: Match) -> int:
    """Let a request wait on a lane; returns how many pages L2 has beyond `match` in L1."""
    num_l2_pages = replica.count_l2_pages(request, match.num_pages)
    num_pages = match.num_pages + num_l2_pages
    lacks = _prompt_key(replica, request, num_pages)
    lane.waiting.add(request, num_cached_pages=num_pages, lacks=lacks)
    return num_l2_pages


def admit_waiting(
    replica: Replica, lane: Lane, now_s: float, budget_tokens: int
) -> list[RequestState]:
    """Admit waiting requests, in order, until one has no room or the budget is used up."""
    admitted: list[RequestState] = []
    _move_grown(replica, lane)

    # Whoever is looked at runs, is parked, moves back, or has no room: so this ends.
    while (
        budget_tokens > 0
        and lane.has_free_slot
        and (request := lane.waiting.next_turn()) is not None
    ):
        match try_admit(replica, lane, request, now_s):
            case Verdict.ADMITTED:
                admitted.append(request)
                if request.phase is Phase.RUNNING:
                    budget_tokens -= request.num_to_plan
            case Verdict.WAITS:
                continue
            case Verdict.NO_ROOM:
                break
    return admitted


def _move_grown(replica: Replica, lane: Lane) -> None:
    """Under `lpm`, requests move forward of which more is cached than when they got their place."""
    for _ in range(_MAX_MOVED):
        request = lane.waiting.take_grown()
        if request is None:
            return
        num_l1_pages = lane.match(request.chain).num_pages
        num_l2_pages = replica.count_l2_pages(request, num_l1_pages)
        _place(replica, lane, request, num_l1_pages + num_l2_pages)


def _place(replica: Replica, lane: Lane, request: RequestState, num_cached_pages: int) -> None:
    lacks = _prompt_key(replica, request, num_cached_pages)
    lane.waiting.place(request, num_cached_pages=num_cached_pages, lacks=lacks)
    replica.lookups.move(request, lane.waiting.key(request))


def _prompt_key(replica: Replica, request: RequestState, page: int) -> PageKey | None:
    """The key of a full prompt page by which others may bring it; None if there is none."""
    if not replica.settings.prefix_caching or page >= request.chain.num_prompt_pages:
        return None
    return request.chain.key(page)


def try_admit(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Verdict:
    """Admit one waiting request if there is room for it and nothing that it should wait for."""
    found = assess(replica, lane, request, now_s)
    if _has_fallen_back(replica, lane, request, found) or _follows(replica, lane, request, found):
        return Verdict.WAITS

    lock = lane.l1.tree.lock(found.match, found.match.num_pages, now_s=now_s)
    verdict, load_pages = _take_pages(replica, lane, request, found, now_s)
    if load_pages is not None:
        _begin(replica, lane, request, found, lock, load_pages, now_s=now_s)
    elif verdict is Verdict.WAITS:
        _wait_for_pages(replica, lane, request, found, lock)
    else:
        lane.l1.withdraw(lock)
    return verdict


def assess(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Assessment:
    """What L1 and L2 hold of the request, and whether loading beats computing."""
    match = lane.match(request.chain)
    num_l2_pages = replica.count_l2_pages(request, match.num_pages)
    is_loaded = num_l2_pages > 0 and _is_load_cheaper(replica, num_l2_pages, now_s)
    return Assessment(
        match=match, num_l2_pages=num_l2_pages, num_load_pages=num_l2_pages if is_loaded else 0
    )


def _is_load_cheaper(replica: Replica, num_pages: int, now_s: float) -> bool:
    settings = replica.settings
    match settings.load:
        case LoadPolicy.ALWAYS:
            return True
        case LoadPolicy.NEVER:
            return False
        case LoadPolicy.AUTO:
            num_bytes = num_pages * replica.loaded_page_bytes
            load_s = replica.load_rate.predict_s(num_bytes, now_s)
            return load_s < replica.prefill_rate.predict_s(num_pages * settings.page_size, now_s)


def _has_fallen_back(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> bool:
    """Under `lpm`, less of it is cached than when it got its place: others go first now."""
    settings = replica.settings
    has_shrunk = found.num_pages < lane.waiting.num_cached_pages(request)
    if settings.policy is not SchedulingPolicy.LPM or not settings.prefix_caching or not has_shrunk:
        return False
    _place(replica, lane, request, found.num_pages)
    return lane.waiting.next_turn() is not request


def _follows(replica: Replica, lane: Lane, request: RequestState, found: Assessment) -> bool:
    """Park a request behind one that brings a page of its prompt, or may not run beside it."""
    lacks = None
    leader = _leader(replica, lane, request, found)
    if leader is not None:
        # The last page that they share comes last: nothing before it is worth a look.
        last = _last_shared_page(replica, lane, request, leader)
        lacks = _prompt_key(replica, request, last)
    elif request.is_suspect:
        suspects = (other for other in lane.running.values() if other.is_suspect)
        leader = next((suspect.request_id for suspect in suspects), None)

    if leader is not None:
        lane.waiting.park(request, lacks=lacks, leader=leader)
    return leader is not None


def _leader(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> RequestId | None:
    """Who computes or loads the page that follows the request's match in L1."""
    # Most often nobody does: then no key need be hashed.
    key = None
    if lane.waiting.has_leaders:
        key = _prompt_key(replica, request, found.match.num_pages)
    return None if key is None else lane.waiting.leader_of(key)


def _last_shared_page(
    replica: Replica, lane: Lane, request: RequestState, leader: RequestId
) -> int:
    """The last page that a request will find in L1 when its leader is done."""
    own, other = request.chain, replica.requests[leader].chain
    promotion = lane.promotions.get(leader)
    num_other = other.num_prompt_pages if promotion is None else promotion.num_pages
    stop = min(num_other, own.num_prompt_pages)
    own_keys, other_keys = own.keys(stop), other.keys(stop)

    # Keys are chained: where two are equal, all before them are.
    first_different = bisect.bisect_left(
        range(stop), True, key=lambda page: _key_at(own_keys, page) != _key_at(other_keys, page)
    )
    return first_different - 1


def _key_at(keys: bytes, page: int) -> bytes:
    return keys[page * KEY_BYTES : (page + 1) * KEY_BYTES]


def _take_pages(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment, now_s: float
) -> tuple[Verdict, PageIds | None]:
    """GPU pages for what is loaded, if the request may run now; its match is locked."""
    # A request that runs alone may have all pages: it takes them as it gets to them.
    num_wanted = 0
    if lane.running:
        num_own = -(-(request.num_tokens + 1) // replica.settings.page_size)
        num_growth = len(lane.running) + 1 + lane.prompt_pages_to_come()
        num_wanted = num_own - found.match.num_pages + num_growth

    load_pages = None
    if num_wanted > lane.l1.num_loadable_pages + lane.promotions.num_pages:
        verdict = Verdict.NO_ROOM
    elif _waits_for_prefetch(replica, request, found, now_s):
        verdict = Verdict.WAITS
    else:
        lane.give_way(num_wanted)
        if num_wanted <= lane.l1.num_loadable_pages:
            load_pages = lane.allocate(found.num_load_pages)
        verdict = Verdict.NO_ROOM if load_pages is None else Verdict.ADMITTED
    return verdict, load_pages


def _waits_for_prefetch(
    replica: Replica, request: RequestState, found: Assessment, now_s: float
) -> bool:
    """Pages are on their way from L3 that are worth more patience."""
    prefetch, settings = request.prefetch, replica.settings
    num_pending = request.chain.num_prompt_pages - found.num_pages
    may_come = replica.host.is_usable and replica.host.has_storage is not False
    if not prefetch.is_pending or num_pending <= 0 or not may_come:
        return False

    num_tokens = num_pending * settings.page_size
    deadline_s = prefetch_deadline_s(
        settings.prefetch,
        first_runnable_s=prefetch.note_runnable(now_s),
        pending_tokens=num_tokens,
        recompute_s=replica.prefill_rate.predict_s(num_tokens, now_s),
    )
    if deadline_s is not None and now_s < deadline_s and prefetch.alarm.advance(deadline_s, now_s):
        replica.wake_at(deadline_s, request)
    return deadline_s is None or now_s < deadline_s


def _wait_for_pages(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment, lock: Lock
) -> None:
    """Park a request until its pages from L3 have come; what has come is loaded ahead."""
    promotion = lane.promotions.start(request, lock, found.num_load_pages)
    if promotion is None:
        lane.l1.withdraw(lock)
    else:
        start = lock.num_pages
        replica.ask_lease(request, start, start + promotion.num_part_pages, promotion)
    lane.waiting.park(request, lacks=_prompt_key(replica, request, found.num_pages))


def _begin(
    replica: Replica,
    lane: Lane,
    request: RequestState,
    found: Assessment,
    lock: Lock,
    load_pages: PageIds,
    *,
    now_s: float,
) -> None:
    """An admitted request runs, or waits for a lease on what is to be loaded."""
    table = BlockTable(found.match.page_ids)
    table.extend(load_pages)
    lane.admit(request, lock, table, now_s)
    if found.num_load_pages:
        replica.counters.count(Count.LOAD_DECISIONS)
        request.wait_for_lease()
        start = found.match.num_pages
        replica.ask_lease(request, start, start + found.num_load_pages)
        # Only now, for the lease takes over from the lookup what is kept in L2.
        replica.cancel_lookup(request)
        return

    if found.num_l2_pages:
        replica.counters.count(Count.RECOMPUTE_DECISIONS)
    replica.cancel_lookup(request)
    start_running(replica, request, num_loaded_pages=0, num_left_pages=found.num_l2_pages)


def start_running(
    replica: Replica, request: RequestState, *, num_loaded_pages: int, num_left_pages: int
) -> None:
    """The request knows which cached pages it gets; what is missing is planned from now on."""
    if not num_loaded_pages:
        replica.lookups.end_claim(request)
    num_l1_pages = request.num_held_pages
    request.start_from((num_l1_pages + num_loaded_pages) * replica.settings.page_size)

    if request.sources is None:
        ranges = attribute(
            request.num_prompt,
            request.prefetch,
            replica.settings,
            num_l1_pages=num_l1_pages,
            num_loaded_pages=num_loaded_pages,
            num_left_pages=num_left_pages,
        )
        request.note_sources(ranges, total_by_source(ranges))
