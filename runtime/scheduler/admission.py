"""Whether a waiting request runs now, and what is loaded for it."""

from enum import Enum

import numpy as np

from raydix.ids import PageKey, RequestId
from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.config.policies import PrefetchStrategy, SchedulingPolicy
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.attribution import attribute, total_by_source
from raydix.runtime.scheduler.block_table import BlockTable
from raydix.runtime.scheduler.cached_prefix import CachedPrefix, tiers_of
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.life.run import Start
from raydix.runtime.scheduler.load_choice import Assessment, assess, is_load_cheaper
from raydix.runtime.scheduler.page_needs import PageCounts, add_pages, pages_to_compute
from raydix.runtime.scheduler.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.publishing import keep_window, places_to_return
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """The request waits for pages that are on their way; others may go first."""
    NO_ROOM = "no room"
    """The request waits for free pages or for a slot; no other request may overtake it."""


def enqueue(replica: Replica, lane: Lane, request: RequestState, found: CachedPrefix) -> None:
    """Let a request wait on a lane."""
    lacks = _prompt_key(replica, request, found.num_pages)
    lane.waiting.add(request, num_cached_pages=found.num_pages, lacks=lacks)


def place_anew(replica: Replica, lane: Lane, request: RequestState, num_cached_pages: int) -> None:
    """Give a waiting request another place, as another part of it is cached."""
    lacks = _prompt_key(replica, request, num_cached_pages)
    lane.waiting.place(request, num_cached_pages=num_cached_pages, lacks=lacks)
    replica.lookups.move(request, lane.waiting.key(request))


def _prompt_key(replica: Replica, request: RequestState, page: int) -> PageKey | None:
    """The key by which other requests may bring a full prompt page; None if they may not."""
    is_full = page < request.chain.num_prompt_pages
    if not replica.settings.prefix_caching or not is_full or request.must_score:
        return None
    return request.chain.key(page)


def try_admit(replica: Replica, lane: Lane, request: RequestState, now_s: float) -> Verdict:
    """Admit one waiting request if there is room for it and nothing that it should wait for."""
    if request.request_id in replica.orphans:
        lane.waiting.park(request, lacks=None)
        return Verdict.WAITS
    found = assess(replica, lane, request, now_s)
    if _has_fallen_back(replica, lane, request, found) or _follows(replica, lane, request, found):
        return Verdict.WAITS

    lock = lane.l1.tree.lock(found.prefix.match, found.num_locked_pages, now_s=now_s)
    num_wanted = _num_wanted_pages(lane, request, found)
    has_room = _would_fit(lane, num_wanted)
    if has_room and _waits_for_prefetch(replica, request, found, now_s):
        return _wait_for_pages(replica, lane, request, found, lock, now_s=now_s)

    if has_room and _has_lost_pages(replica, request, found):
        lane.l1.withdraw(lock)
        request.prefetch.note_loss()
        _look_up_again(replica, lane, request, PageSource.L3)
        lane.waiting.park(request, lacks=None)
        return Verdict.WAITS

    load_pages = _allocate_loads(lane, found, num_wanted) if has_room else None
    if load_pages is None:
        lane.l1.withdraw(lock)
        return Verdict.NO_ROOM
    _begin(replica, lane, request, found, lock, load_pages, now_s=now_s)
    return Verdict.ADMITTED


def _has_fallen_back(
    replica: Replica, lane: Lane, request: RequestState, found: Assessment
) -> bool:
    """Under `lpm`, move a request back of which less is cached now; True: others go first."""
    settings, num_pages = replica.settings, found.prefix.num_pages
    has_shrunk = num_pages < lane.waiting.num_cached_pages(request)
    if settings.policy is not SchedulingPolicy.LPM or not settings.prefix_caching or not has_shrunk:
        return False
    place_anew(replica, lane, request, num_pages)
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
    """The request that computes or loads the page behind this request's match in L1."""
    # Most often nobody does: then no key need be hashed.
    key = None
    if lane.waiting.has_leaders:
        key = _prompt_key(replica, request, found.prefix.num_l1_pages)
    return None if key is None else lane.waiting.leader_of(key)


def _last_shared_page(
    replica: Replica, lane: Lane, request: RequestState, leader: RequestId
) -> int:
    """The last page that a request will find in L1 when its leader is done."""
    other = replica.requests[leader].chain
    promotion = lane.promotions.get(leader)
    num_other = other.num_prompt_pages if promotion is None else promotion.num_pages
    return min(num_other, request.chain.num_shared_pages(other)) - 1


def _num_wanted_pages(lane: Lane, request: RequestState, found: Assessment) -> PageCounts:
    """Pages that a request, whose match is locked, and the running ones need for what is known."""
    # A request that runs alone may have all pages: it takes them as it gets to them.
    settings = lane.settings
    if not lane.running:
        return (0,) * settings.num_groups
    num_own = -(-(request.num_tokens + 1) // settings.page_size) - found.num_start_pages
    to_compute = pages_to_compute(settings, num_own)
    num_growth = (len(lane.running) + 1,) * settings.num_groups
    return add_pages(found.num_loaded, to_compute, num_growth, lane.prompt_pages_to_come())


def _allocate_loads(lane: Lane, found: Assessment, num_wanted: PageCounts) -> PageIds | None:
    """GPU pages for what is loaded, if all that is wanted can come free; promotions give way."""
    lane.give_way(num_wanted)
    return lane.allocate(found.num_loaded) if lane.l1.can_free(num_wanted) else None


def _would_fit(lane: Lane, num_pages: PageCounts) -> bool:
    """Whether there is room for so many pages once all promotions have given way."""
    if lane.l1.can_free(num_pages):
        return True
    pairs = zip(num_pages, lane.promotions.num_kept_pages(), strict=True)
    return lane.l1.can_free(tuple([max(0, num - num_kept) for num, num_kept in pairs]))


def _waits_for_prefetch(
    replica: Replica, request: RequestState, found: Assessment, now_s: float
) -> bool:
    """Whether the request waits for pages on their way from L3 that are worth more patience."""
    prefetch, settings = request.prefetch, replica.settings
    num_pending = request.chain.num_prompt_pages - found.prefix.num_pages
    may_come = replica.host.is_usable and replica.host.has_storage is not False
    if not prefetch.is_pending or num_pending <= 0 or not may_come:
        return False

    num_tokens = num_pending * settings.page_size
    if not prefetch.has_report and num_tokens < replica.host.min_l3_tokens:
        # HostMemory will not ask L3, so nothing is on its way.
        prefetch.give_up(PageSource.BELOW_MIN_TOKENS)
        return False
    deadline_s = prefetch_deadline_s(
        settings.prefetch,
        first_runnable_s=prefetch.note_runnable(now_s),
        pending_tokens=num_tokens,
        recompute_s=replica.prefill_rate.predict_s(num_tokens, now_s),
        answer_s=replica.host.l3_answer_s,
    )
    if deadline_s is not None and now_s < deadline_s and prefetch.alarm.advance(deadline_s, now_s):
        replica.wake_at(deadline_s, request)
    return deadline_s is None or now_s < deadline_s


def _wait_for_pages(
    replica: Replica,
    lane: Lane,
    request: RequestState,
    found: Assessment,
    lock: Lock,
    *,
    now_s: float,
) -> Verdict:
    """Park a request until its pages from L3 have come; what has come is loaded ahead."""
    settings, prefix, is_halted = replica.settings, found.prefix, request.prefetch.is_halted
    start = min(prefix.match.num_pages, prefix.num_known_pages)
    num_pages = prefix.num_known_pages - start if settings.has_full else 0
    # What goes through L2 by turns is loaded as a whole, or not at all.
    num_weighed = request.chain.num_prompt_pages - start if is_halted else num_pages
    num_loaded = [num_weighed if reach is None else 0 for reach in settings.reaches]

    promotion = None
    num_bytes = replica.bytes_of(num_loaded)
    is_loaded = num_pages > 0 and is_load_cheaper(replica, num_bytes, num_weighed, now_s)
    if is_loaded:
        if lock.num_pages < start:
            # Windows end before: what sees everything goes on where its path in L1 does.
            lane.l1.withdraw(lock)
            lock = lane.l1.tree.lock(prefix.match, start, now_s=now_s)
        promotion = lane.promotions.start(request, lock, num_pages)
    is_room_to_come = is_halted and is_loaded and lane.promotions.num_left(request, lock) > 0
    if promotion is None:
        lane.l1.withdraw(lock)
    else:
        stop = start + promotion.num_part_pages
        starts = [start if reach is None else stop for reach in settings.reaches]
        replica.ask_lease(request, starts, stop, promotion)

    if is_halted and not lane.promotions.has_part(request):
        if is_room_to_come:
            return Verdict.NO_ROOM
        if num_pages or not _look_up_rest(replica, lane, request, prefix.match.num_pages):
            # It is looked at again at once, and runs.
            request.prefetch.give_up_turns()
            return Verdict.WAITS
    lane.waiting.park(request, lacks=_prompt_key(replica, request, prefix.num_pages))
    return Verdict.WAITS


def _look_up_rest(replica: Replica, lane: Lane, request: RequestState, num_l1_pages: int) -> bool:
    """Once all that had come is in L1, look up the rest. Returns False if nothing had come."""
    if num_l1_pages <= request.prefetch.num_l1_pages:
        return False
    _look_up_again(replica, lane, request, PageSource.NO_HOST_PAGE)
    return True


def _look_up_again(replica: Replica, lane: Lane, request: RequestState, of: PageSource) -> None:
    """Look a request up once more, for the pages of which its last lookup reported `of`."""
    keys = request.chain.short_keys(request.prefetch.pages(of))
    replica.lookups.end_claim(request)
    replica.lookups.enqueue(request, keys, lane.waiting.key(request))
    request.prefetch.make_due_again()
    replica.counters.count(Count.REPEATED_LOOKUPS)
    replica.send_due_lookups()


def _has_lost_pages(replica: Replica, request: RequestState, found: Assessment) -> bool:
    """Whether L2 lost what L3 brought while the request waited for room; L3 may bring it again."""
    settings, prefetch = replica.settings, request.prefetch
    may_come = replica.host.is_usable and replica.host.has_storage is not False
    if not may_come or settings.prefetch.strategy is PrefetchStrategy.BEST_EFFORT:
        return False
    return prefetch.has_lost(settings.reaches, found.prefix.num_known_pages)


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
    """Let an admitted request run, or wait for a lease on what is to be loaded."""
    start = _start_of(replica, request, found)
    table = _first_table(replica, found, start, load_pages)
    lane.admit(request, lock, table, start, now_s)
    lane.lead(request, found.prefix.num_l1_pages)
    lease_id = None
    if found.loaded is not None:
        replica.counters.count(Count.LOAD_DECISIONS)
        request.wait_for_lease()
        stop = start.num_pages
        starts = [pages[0] if pages else stop for pages in start.loads]
        lease_id = replica.ask_lease(request, starts, stop)
    if found.trial_load_s is not None:
        replica.trials.begin(lease_id, found.trial_load_s, now_s)
    if lease_id is not None:
        # Only now, for the lease takes over from the lookup what is kept in L2.
        replica.cancel_lookup(request)
        return

    # Where a prefix is taken up it may be taken up again, when L1 has lost its window.
    keep_window(lane, request, start.num_pages)
    if found.prefix.num_l2_pages:
        replica.counters.count(Count.RECOMPUTE_DECISIONS)
    replica.cancel_lookup(request)
    start_running(replica, request, start)


def _start_of(replica: Replica, request: RequestState, found: Assessment) -> Start:
    """Where a request takes up its chain: the `Start` of its run."""
    prefix, num_pages = found.prefix, found.num_start_pages
    return Start(
        num_pages=num_pages,
        tiers=tiers_of(replica.settings, num_pages, found.loads),
        loads=found.loads,
        num_left_pages=prefix.num_pages - num_pages,
        checkpoints=places_to_return(request, prefix.num_known_pages),
    )


def _first_table(
    replica: Replica, found: Assessment, start: Start, load_pages: PageIds
) -> BlockTable:
    """The pages that a request begins behind, in WINDOW groups those of its window."""
    columns = []
    needed = first_needed(replica.settings.reaches, start.num_pages)
    for group, ids in enumerate(found.prefix.match.page_ids):
        column = np.zeros(start.num_pages, dtype=np.int32)
        locked = found.num_locked_pages
        column[:locked] = ids[:locked]
        column[np.asarray(start.loads[group], dtype=np.intp)] = load_pages[group]
        column[: needed[group]] = 0
        columns.append(column)
    return BlockTable(tuple(columns))


def start_running(replica: Replica, request: RequestState, start: Start) -> None:
    """Let a request run that knows which cached pages it gets; the rest is planned from now on."""
    if not any(start.loads):
        replica.lookups.end_claim(request)
    request.start_from(start.num_pages * replica.settings.page_size)

    if request.sources is None:
        num_prompt_pages = request.chain.num_prompt_pages
        ranges = attribute(
            request.num_prompt,
            request.prefetch,
            replica.settings,
            tiers=start.tiers[:num_prompt_pages],
            num_left_pages=start.num_left_pages,
        )
        request.note_sources(ranges, total_by_source(ranges))
