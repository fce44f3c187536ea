"""Whether a waiting request runs now, and what is loaded for it."""

from enum import Enum

import numpy as np

from raydix.ids import RequestId
from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.config.policies import PrefetchStrategy, SchedulingPolicy
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.life.load_choice import Assessment, LoadChoice
from raydix.runtime.scheduler.life.publishing import places_to_return
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.pages.page_needs import PageCounts, add_pages, pages_to_compute
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.block_table import BlockTable
from raydix.runtime.scheduler.request.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.run import Start
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix, tiers_of
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """The request waits for pages that are on their way; others may go first."""
    NO_ROOM = "no room"
    """The request waits for free pages or for a slot; no other request may overtake it."""


class Admission:
    """Decides whether a waiting request runs, and has that carried out."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        source: KvSource,
        rates: Rates,
        choice: LoadChoice,
        trials: Trials,
        life: Transitions,
        timers: Timers,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._source = source
        self._rates = rates
        self._choice = choice
        self._trials = trials
        self._life = life
        self._timers = timers
        self._counters = counters

    def try_admit(self, lane: Lane, request: RequestState, now_s: float) -> Verdict:
        """Admit one waiting request if there is room for it and nothing that it should wait for."""
        if request.request_id in self._requests.orphans:
            lane.waiting.park(request, lacks=None)
            return Verdict.WAITS
        found = self._choice.assess(lane, request, now_s)
        if self._has_fallen_back(lane, request, found) or self._follows(lane, request, found):
            return Verdict.WAITS

        lock = lane.l1.lock(found.prefix.match, found.num_locked_pages, now_s=now_s)
        num_wanted = _num_wanted_pages(lane, request, found)
        has_room = _would_fit(lane, num_wanted)
        if has_room and self._waits_for_prefetch(request, found, now_s):
            return self._wait_for_pages(lane, request, found, lock, now_s=now_s)

        if has_room and self._has_lost_pages(request, found):
            lane.l1.withdraw(lock)
            self._life.look_up_lost(lane, request)
            lane.waiting.park(request, lacks=None)
            return Verdict.WAITS

        load_pages = _allocate_loads(lane, found, num_wanted) if has_room else None
        if load_pages is None:
            lane.l1.withdraw(lock)
            return Verdict.NO_ROOM
        self._admit(lane, request, found, lock, load_pages, now_s=now_s)
        return Verdict.ADMITTED

    def _has_fallen_back(self, lane: Lane, request: RequestState, found: Assessment) -> bool:
        """Under `lpm`, move a request back of which less is cached now; True: others go first."""
        settings, num_pages = self._settings, found.prefix.num_pages
        is_by_match = settings.policy is SchedulingPolicy.LPM and settings.prefix_caching
        if not is_by_match or num_pages >= lane.waiting.num_cached_pages(request):
            return False
        self._life.place_anew(lane, request, num_pages)
        return lane.waiting.next_turn() is not request

    def _follows(self, lane: Lane, request: RequestState, found: Assessment) -> bool:
        """Park a request behind one that brings a page of its prompt, or may not run beside it."""
        lacks = None
        leader = _leader(lane, request, found)
        if leader is not None:
            # The last page that they share comes last: nothing before it is worth a look.
            last = self._last_shared_page(lane, request, leader)
            lacks = lane.waiting.prompt_key(request, last)
        elif request.is_suspect:
            suspects = (other for other in lane.running.values() if other.is_suspect)
            leader = next((suspect.request_id for suspect in suspects), None)

        if leader is not None:
            lane.waiting.park(request, lacks=lacks, leader=leader)
        return leader is not None

    def _last_shared_page(self, lane: Lane, request: RequestState, leader: RequestId) -> int:
        """The last page that a request will find in L1 when its leader is done."""
        other = self._requests.living[leader].chain
        promotion = lane.promotions.get(leader)
        num_other = other.num_prompt_pages if promotion is None else promotion.num_pages
        return min(num_other, request.chain.num_shared_pages(other)) - 1

    def _waits_for_prefetch(self, request: RequestState, found: Assessment, now_s: float) -> bool:
        """Whether the request waits for pages on their way from L3 that are worth more patience."""
        prefetch, settings, view = request.prefetch, self._settings, self._source.view
        num_pending = request.chain.num_prompt_pages - found.prefix.num_pages
        may_come = view.is_usable and view.has_storage is not False
        if not prefetch.is_pending or num_pending <= 0 or not may_come:
            return False

        num_tokens = num_pending * settings.page_size
        if not prefetch.has_report and num_tokens < view.min_l3_tokens:
            # HostMemory will not ask L3, so nothing is on its way.
            prefetch.give_up(PageSource.BELOW_MIN_TOKENS)
            return False
        deadline_s = prefetch_deadline_s(
            settings.prefetch,
            first_runnable_s=prefetch.note_runnable(now_s),
            pending_tokens=num_tokens,
            recompute_s=self._rates.prefill.predict_s(num_tokens, now_s),
            answer_s=view.l3_answer_s,
        )
        if deadline_s is None:
            return True
        if now_s < deadline_s and prefetch.set_alarm(deadline_s, now_s):
            self._timers.add(deadline_s, request.ticket)
        return now_s < deadline_s

    def _wait_for_pages(
        self, lane: Lane, request: RequestState, found: Assessment, lock: Lock, *, now_s: float
    ) -> Verdict:
        """Park a request until its pages from L3 have come; what has come is loaded ahead."""
        prefix, is_halted = found.prefix, request.prefetch.is_halted
        has_more_room = self._load_ahead(lane, request, prefix, lock, now_s)

        if is_halted and not lane.promotions.has_part(request):
            if has_more_room:
                return Verdict.NO_ROOM
            num_ahead = self._num_ahead(prefix)
            if num_ahead or not self._look_up_rest(lane, request, prefix.match.num_pages):
                # It is looked at again at once, and runs.
                request.prefetch.give_up_turns()
                return Verdict.WAITS
        lacks = lane.waiting.prompt_key(request, prefix.num_pages)
        lane.waiting.park(request, lacks=lacks)
        return Verdict.WAITS

    def _num_ahead(self, prefix: CachedPrefix) -> int:
        """The pages of L2, in groups that see everything, which can be loaded ahead of the rest."""
        num_pages = prefix.num_known_pages - min(prefix.match.num_pages, prefix.num_known_pages)
        return num_pages if self._settings.has_full else 0

    def _load_ahead(
        self, lane: Lane, request: RequestState, prefix: CachedPrefix, lock: Lock, now_s: float
    ) -> bool:
        """Load what has come for a request whose match is locked; else the lock goes back.

        Returns whether a prompt that goes through L2 by turns has room in L1 to come.
        """
        settings, is_halted = self._settings, request.prefetch.is_halted
        start = min(prefix.match.num_pages, prefix.num_known_pages)
        num_pages = self._num_ahead(prefix)
        # What goes through L2 by turns is loaded as a whole, or not at all.
        num_weighed = request.chain.num_prompt_pages - start if is_halted else num_pages
        num_loaded = [num_weighed if reach is None else 0 for reach in settings.reaches]
        num_bytes = settings.bytes_of(num_loaded)
        if not num_pages or not self._choice.is_load_cheaper(num_bytes, num_weighed, now_s):
            lane.l1.withdraw(lock)
            return False

        if lock.num_pages < start:
            # Windows end before: what sees everything goes on where its path in L1 does.
            lane.l1.withdraw(lock)
            lock = lane.l1.lock(prefix.match, start, now_s=now_s)
        is_promoted = self._life.promote(lane, request, lock, num_pages)
        has_more_room = is_halted and lane.promotions.num_left(request, lock) > 0
        if not is_promoted:
            lane.l1.withdraw(lock)
        return has_more_room

    def _look_up_rest(self, lane: Lane, request: RequestState, num_l1_pages: int) -> bool:
        """Once all that had come is in L1, look up the rest; False if nothing had come."""
        if num_l1_pages <= request.prefetch.num_l1_pages:
            return False
        self._life.look_up_refused(lane, request)
        return True

    def _has_lost_pages(self, request: RequestState, found: Assessment) -> bool:
        """Whether L2 lost what L3 brought while the request waited for room.

        L3 may bring it again.
        """
        settings, view = self._settings, self._source.view
        may_come = view.is_usable and view.has_storage is not False
        if not may_come or settings.prefetch.strategy is PrefetchStrategy.BEST_EFFORT:
            return False
        return request.prefetch.has_lost(settings.reaches, found.prefix.num_known_pages)

    def _admit(
        self,
        lane: Lane,
        request: RequestState,
        found: Assessment,
        lock: Lock,
        load_pages: PageIds,
        *,
        now_s: float,
    ) -> None:
        """Let a request run, or wait for a lease on what is to be loaded."""
        prefix, num_pages = found.prefix, found.num_start_pages
        start = Start(
            num_pages=num_pages,
            tiers=tiers_of(self._settings, num_pages, found.loads),
            loads=found.loads,
            num_left_pages=prefix.num_pages - num_pages,
            checkpoints=places_to_return(request, prefix.num_known_pages),
        )
        table = _first_table(self._settings, found, start, load_pages)
        lease_id = self._life.admit(
            lane, request, lock, table, start, num_l1_pages=prefix.num_l1_pages, now_s=now_s
        )
        if lease_id is not None:
            self._counters.count(Count.LOAD_DECISIONS)
        elif prefix.num_l2_pages:
            self._counters.count(Count.RECOMPUTE_DECISIONS)
        if found.trial_load_s is not None:
            self._trials.begin(lease_id, found.trial_load_s, now_s)


def _leader(lane: Lane, request: RequestState, found: Assessment) -> RequestId | None:
    """The request that computes or loads the page behind this request's match in L1."""
    # Most often nobody does: then no key need be hashed.
    key = None
    if lane.waiting.has_leaders:
        key = lane.waiting.prompt_key(request, found.prefix.num_l1_pages)
    return None if key is None else lane.waiting.leader_of(key)


def _first_table(
    settings: SchedulerSettings, found: Assessment, start: Start, load_pages: PageIds
) -> BlockTable:
    """The pages that a request begins behind, in WINDOW groups those of its window."""
    columns = []
    needed = first_needed(settings.reaches, start.num_pages)
    for group, ids in enumerate(found.prefix.match.page_ids):
        column = np.zeros(start.num_pages, dtype=np.int32)
        locked = found.num_locked_pages
        column[:locked] = ids[:locked]
        column[np.asarray(start.loads[group], dtype=np.intp)] = load_pages[group]
        column[: needed[group]] = 0
        columns.append(column)
    return BlockTable(tuple(columns))


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
