"""Which waiting request runs next, and what is loaded for it."""

import bisect
from dataclasses import dataclass
from enum import Enum

from raydix.ids import PageKey, RequestId
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.config.policies import LoadPolicy, SchedulingPolicy
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import KEY_BYTES
from raydix.runtime.scheduler.attribution import attribute, total_by_source
from raydix.runtime.scheduler.backups import count_dropped
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.promotion import promote
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import MAX_LOSSES, Phase, RequestState

_MAX_MOVED = 16
"""Waiting requests whose place is chosen anew per step, because more of them is cached: a step's
cost is bounded.
"""


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """For pages on their way; others may go first."""
    NO_ROOM = "no room"
    """For pages or a slot; nobody may overtake it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a request would find: `match` in L1, then `num_l2_pages` in L2, of which
    `num_load_pages` are loaded.
    """

    match: Match
    num_l2_pages: int
    num_load_pages: int


def enqueue(replica: Replica, lane: Lane, request: RequestState, match: Match) -> int:
    """Let a request wait on a lane, whose L1 holds `match`; returns how many further pages L2 has."""
    num_l2_pages = _count_l2_pages(replica, request, match)
    num_pages = match.num_pages + num_l2_pages
    lacks = _first_lacking(replica, request, num_pages)
    lane.waiting.add(request, num_cached_pages=num_pages, lacks=lacks)
    return num_l2_pages


def admit_waiting(
    replica: Replica, lane: Lane, now_s: float, budget_tokens: int
) -> list[RequestState]:
    """Admit waiting requests, in order, until one has no room or the prompts admitted use up
    `budget_tokens`.
    """
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
    """Under `lpm`, those of which more is cached than when their place was chosen move forward."""
    for _ in range(_MAX_MOVED):
        request = lane.waiting.take_grown()
        if request is None:
            return
        match = lane.match(request)
        _place(replica, lane, request, match.num_pages + _count_l2_pages(replica, request, match))


def _place(replica: Replica, lane: Lane, request: RequestState, num_cached_pages: int) -> None:
    lacks = _first_lacking(replica, request, num_cached_pages)
    lane.waiting.place(request, num_cached_pages=num_cached_pages, lacks=lacks)
    replica.lookups.move(request, lane.waiting.key(request))


def _first_lacking(replica: Replica, request: RequestState, page: int) -> PageKey | None:
    """The key of a page that a request lacks; None past its last full prompt page."""
    size = replica.settings.page_size
    if not replica.settings.prefix_caching or page >= request.num_prompt // size:
        return None
    return request.key(page, size)


def try_admit(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Verdict:
    """Admit one waiting request if there is room and nothing that it should wait for; else it may
    be parked.
    """
    found = assess(replica, lane, request, now_s)
    if _has_fallen_back(replica, lane, request, found) or _follows_another(
        replica, lane, request, found
    ):
        return Verdict.WAITS

    lock = lane.tree.lock(found.match, now_s=now_s)
    verdict, load_pages = _reserve(replica, lane, request, found, now_s)
    if load_pages is None:
        is_early = verdict is Verdict.WAITS and promote(
            replica, lane, request, lock, found.num_load_pages
        )
        if not is_early:
            lane.withdraw(lock)
        if verdict is Verdict.WAITS:
            num_pages = found.match.num_pages + found.num_l2_pages
            lane.waiting.park(request, lacks=_first_lacking(replica, request, num_pages))
        return verdict

    lane.waiting.discard(request)
    lane.end_promotion(request.request_id)
    lane.admit(request, lock, found.match.page_ids[0].tolist() + load_pages.tolist())
    request.note_admission(now_s)
    _begin(replica, request, found)
    return Verdict.ADMITTED


def _begin(replica: Replica, request: RequestState, found: Assessment) -> None:
    """An admitted request runs, or waits for a lease on what is to be loaded."""
    if found.num_l2_pages:
        replica.counters["load_decisions" if found.num_load_pages else "recompute_decisions"] += 1
    if found.num_load_pages:
        request.phase = Phase.LEASING
        start = found.match.num_pages
        replica.ask_lease(request, start, start + found.num_load_pages)
        # Only now, for the lease takes over from the lookup what is kept in L2.
        replica.cancel_lookup(request)
    else:
        replica.cancel_lookup(request)
        start_running(replica, request, num_loaded_pages=0, num_left_pages=found.num_l2_pages)


def _has_fallen_back(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> bool:
    """Under `lpm`, less of the request is cached than when its place was chosen, and others are
    before it now.
    """
    if replica.settings.policy is not SchedulingPolicy.LPM or not replica.settings.prefix_caching:
        return False
    num_pages = found.match.num_pages + found.num_l2_pages
    if -lane.waiting.key(request)[1] <= num_pages:
        return False
    _place(replica, lane, request, num_pages)
    return lane.waiting.next_turn() is not request


def _follows_another(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> bool:
    """Park a request behind the one that computes or loads a page of its prompt, or that is not to
    run beside it.
    """
    leader = _leader(replica, lane, request, found)
    if leader is not None:
        # The last page that they share comes last: nothing before it is worth a look.
        last = _last_shared_page(replica, lane, request, leader)
        lane.waiting.park(request, lacks=_first_lacking(replica, request, last), leader=leader)
        return True

    if request.num_losses < MAX_LOSSES:
        return False
    suspect = next(
        (other for other in lane.running.values() if other.num_losses >= MAX_LOSSES), None
    )
    if suspect is not None:
        lane.waiting.park(request, lacks=None, leader=suspect.request_id)
    return suspect is not None


def _leader(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> RequestId | None:
    """Who computes or loads the page that follows the request's match in L1."""
    page = found.match.num_pages
    size = replica.settings.page_size
    if (
        not lane.computing
        or not replica.settings.prefix_caching
        or page >= request.num_prompt // size
    ):
        return None
    return lane.computing.get(request.key(page, size))


def _last_shared_page(
    replica: Replica, lane: Lane, request: RequestState, leader: RequestId
) -> int:
    """The last page that a request will find in L1 when its leader has published its prompt, or
    loaded its part.
    """
    size = replica.settings.page_size
    other = replica.requests[leader]
    promotion = lane.promotions.get(leader)
    num_other = other.num_prompt // size if promotion is None else promotion.num_pages
    stop = min(num_other, request.num_prompt // size)
    own_keys, other_keys = request.keys(stop, size), other.keys(stop, size)

    # Keys are chained: where two are equal, all before them are.
    return (
        bisect.bisect_left(
            range(stop), True, key=lambda page: _key_at(own_keys, page) != _key_at(other_keys, page)
        )
        - 1
    )


def _key_at(keys: bytes, page: int) -> bytes:
    return keys[page * KEY_BYTES : (page + 1) * KEY_BYTES]


def _reserve(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment, now_s: float
) -> tuple[Verdict, Int32Array | None]:
    """GPU pages for what is loaded, if the request may run now; its match is locked."""
    num_wanted = 0
    if lane.running:
        num_pages = (
            -(-(request.num_tokens + 1) // replica.settings.page_size) - found.match.num_pages
        )
        num_wanted = num_pages + len(lane.running) + 1 + lane.prompt_pages_to_come()
    if num_wanted > lane.num_loadable_pages + lane.num_promoted_pages:
        return Verdict.NO_ROOM, None
    if _waits_for_prefetch(replica, request, found, now_s):
        return Verdict.WAITS, None
    lane.give_way(num_wanted)
    if num_wanted > lane.num_loadable_pages:
        return Verdict.NO_ROOM, None
    load_pages, victims = lane.allocate(found.num_load_pages)
    count_dropped(replica, victims)
    return Verdict.ADMITTED if load_pages is not None else Verdict.NO_ROOM, load_pages


def start_running(
    replica: Replica, request: RequestState, *, num_loaded_pages: int, num_left_pages: int
) -> None:
    """The request knows which cached pages it gets; what is missing is planned from now on."""
    request.phase = Phase.RUNNING
    if not num_loaded_pages:
        replica.lookups.end_claim(request)
    size = replica.settings.page_size
    num_l1_pages = request.num_held_pages
    num_cached = (num_l1_pages + num_loaded_pages) * size
    request.start_from(num_cached)
    if request.sources is None:
        request.source_ranges = attribute(
            request,
            replica.settings,
            num_l1_pages=num_l1_pages,
            num_loaded_pages=num_loaded_pages,
            num_left_pages=num_left_pages,
        )
        request.sources = total_by_source(request.source_ranges)


def assess(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Assessment:
    """What L1 and L2 hold of the request, and whether loading beats computing."""
    if not replica.settings.prefix_caching:
        return Assessment(
            match=lane.tree.match(request.identity, b""), num_l2_pages=0, num_load_pages=0
        )
    match = lane.match(request)
    num_l2_pages = _count_l2_pages(replica, request, match)
    is_loaded = num_l2_pages > 0 and _is_load_cheaper(replica, num_l2_pages, now_s)
    return Assessment(
        match=match, num_l2_pages=num_l2_pages, num_load_pages=num_l2_pages if is_loaded else 0
    )


def _count_l2_pages(replica: Replica, request: RequestState, match: Match) -> int:
    if (
        not replica.host.is_usable
        or not replica.host.num_keys
        or not replica.settings.prefix_caching
    ):
        return 0
    num_full = request.num_tokens // replica.settings.page_size
    keys = request.keys(num_full, replica.settings.page_size)
    return replica.host.count_resident(keys, match.num_pages, num_full)


def _is_load_cheaper(replica: Replica, num_pages: int, now_s: float) -> bool:
    settings = replica.settings
    match settings.load:
        case LoadPolicy.ALWAYS:
            return True
        case LoadPolicy.NEVER:
            return False
        case LoadPolicy.AUTO:
            load_s = replica.load_rate.predict_s(
                num_pages * settings.layout.payload_bytes(0), now_s
            )
            return load_s < replica.prefill_rate.predict_s(num_pages * settings.page_size, now_s)


def _waits_for_prefetch(
    replica: Replica, request: RequestState, found: Assessment, now_s: float
) -> bool:
    prefetch = request.prefetch
    size = replica.settings.page_size
    pending_pages = request.num_prompt // size - found.match.num_pages - found.num_l2_pages
    is_due = replica.host.is_usable and replica.host.has_storage is not False
    if not prefetch.is_pending or pending_pages <= 0 or not is_due:
        return False
    if prefetch.first_runnable_s is None:
        prefetch.first_runnable_s = now_s
    deadline_s = prefetch_deadline_s(
        replica.settings.prefetch,
        first_runnable_s=prefetch.first_runnable_s,
        pending_tokens=pending_pages * size,
        recompute_s=replica.prefill_rate.predict_s(pending_pages * size, now_s),
    )
    if deadline_s is None:
        return True
    if now_s >= deadline_s:
        return False
    if not now_s < prefetch.wakes_at_s <= deadline_s:
        prefetch.wakes_at_s = deadline_s
        replica.wake_at(deadline_s, request)
    return True
