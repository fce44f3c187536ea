"""Which waiting request runs next, and what is loaded for it."""

from dataclasses import dataclass
from enum import Enum

from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.scheduler.attribution import attribute, total_by_source
from raydix.runtime.scheduler.backups import count_dropped
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.promotion import promote
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import Phase, RequestState
from raydix.runtime.scheduler.settings import LoadPolicy, Policy

_NUM_REFRESHED = 64
"""Waiting requests whose match is looked up again per step, for `lpm`: the cost of a step is bounded."""


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """For pages on their way; others may go first."""
    NO_ROOM = "no room"
    """For pages or a slot; nobody may overtake it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a request would find: `match` in L1, then `num_l2_pages` in L2, of which `num_load_pages` are loaded."""

    match: Match
    num_l2_pages: int
    num_load_pages: int


def waiting_order(replica: Replica, lane: Lane, now_s: float) -> list[RequestState]:
    """The lane's waiting requests in the order in which they are looked at."""
    settings = replica.settings
    waiting = list(lane.waiting.values())
    if settings.policy is Policy.LPM and settings.prefix_caching and len(waiting) > 1:
        for request in waiting[:_NUM_REFRESHED]:
            request.matched_pages = count_cached_pages(replica, lane, request)
            # The looked-at go to the back of the dict, so that every waiting request has its turn.
            lane.waiting[request.request_id] = lane.waiting.pop(request.request_id)

    def order(request: RequestState) -> tuple[int, int, float]:
        aged = request.submit.priority - int((now_s - request.arrival_s) / settings.ageing_s)
        return (aged, -request.matched_pages, request.arrival_s)

    return sorted(waiting, key=order)


def count_cached_pages(replica: Replica, lane: Lane, request: RequestState) -> int:
    """Pages of the request's prefix in L1 and, as far as is known, L2."""
    if not replica.settings.prefix_caching:
        return 0
    match = lane.match(request)
    return match.num_pages + _count_l2_pages(replica, request, match)


def admit_waiting(replica: Replica, lane: Lane, now_s: float, budget_tokens: int) -> list[RequestState]:
    """Admit waiting requests, in order, until one has no room or the prompts admitted use up `budget_tokens`."""
    admitted: list[RequestState] = []
    if not lane.waiting or not lane.has_free_slot:
        return admitted
    for request in waiting_order(replica, lane, now_s):
        if budget_tokens <= 0 or not lane.has_free_slot:
            break
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


def try_admit(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Verdict:
    """Admit one waiting request if there is room and nothing that it should wait for."""
    found = assess(replica, lane, request, now_s)
    if _is_computed_by_another(replica, lane, request, found):
        return Verdict.WAITS
    lock = lane.tree.lock(found.match, now_s=now_s)
    verdict, load_pages = _reserve(replica, lane, request, found, now_s)
    if load_pages is None:
        is_early = verdict is Verdict.WAITS and promote(replica, lane, request, lock, found.num_load_pages, now_s)
        if not is_early:
            lane.withdraw(lock)
        return verdict
    del lane.waiting[request.request_id]
    lane.end_promotion(request.request_id)
    replica.cancel_lookup(request)
    request.begin_run(lane.take_slot(), lock, found.match.page_ids[0].tolist() + load_pages.tolist())
    lane.running[request.request_id] = request
    if request.admitted_s is None:
        request.admitted_s = now_s
    lane.note_computing(request)
    if found.num_l2_pages:
        replica.counters["load_decisions" if found.num_load_pages else "recompute_decisions"] += 1
    if found.num_load_pages:
        request.phase = Phase.LEASING
        start = found.match.num_pages
        replica.ask_lease(request, start, start + found.num_load_pages, now_s)
    else:
        start_running(replica, request, num_loaded_pages=0, num_left_pages=found.num_l2_pages)
    return Verdict.ADMITTED


def _reserve(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment, now_s: float
) -> tuple[Verdict, Int32Array | None]:
    """GPU pages for what is loaded, if the request may run now; its match is locked."""
    num_wanted = 0
    if lane.running:
        num_pages = -(-(request.num_tokens + 1) // replica.settings.page_size) - found.match.num_pages
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


def start_running(replica: Replica, request: RequestState, *, num_loaded_pages: int, num_left_pages: int) -> None:
    """The request knows which cached pages it gets; what is missing is planned from now on."""
    request.phase = Phase.RUNNING
    size = replica.settings.page_size
    num_l1_pages = request.num_held_pages
    num_cached = (num_l1_pages + num_loaded_pages) * size
    request.num_planned = request.num_computed = min(num_cached, request.num_tokens - 1)
    request.write_start = num_cached
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
        return Assessment(match=lane.tree.match(request.identity, b""), num_l2_pages=0, num_load_pages=0)
    match = lane.match(request)
    num_l2_pages = _count_l2_pages(replica, request, match)
    is_loaded = num_l2_pages > 0 and _is_load_cheaper(replica, num_l2_pages, now_s)
    return Assessment(match=match, num_l2_pages=num_l2_pages, num_load_pages=num_l2_pages if is_loaded else 0)


def _count_l2_pages(replica: Replica, request: RequestState, match: Match) -> int:
    if not replica.host.is_usable or not replica.host.num_keys:
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
            load_s = replica.load_rate.predict_s(num_pages * settings.layout.payload_bytes(0), now_s)
            return load_s < replica.prefill_rate.predict_s(num_pages * settings.page_size, now_s)


def _is_computed_by_another(replica: Replica, lane: Lane, request: RequestState, found: Assessment) -> bool:
    page = found.match.num_pages
    if not lane.computing or not replica.settings.prefix_caching:
        return False
    if page >= request.num_prompt // replica.settings.page_size:
        return False
    return request.key(page, replica.settings.page_size) in lane.computing


def _waits_for_prefetch(replica: Replica, request: RequestState, found: Assessment, now_s: float) -> bool:
    prefetch = request.prefetch
    size = replica.settings.page_size
    pending_pages = request.num_prompt // size - found.match.num_pages - found.num_l2_pages
    is_due = replica.host.is_usable and replica.host.has_storage is not False
    if prefetch.is_final or pending_pages <= 0 or not is_due:
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
        replica.wake_at(deadline_s)
    return True
