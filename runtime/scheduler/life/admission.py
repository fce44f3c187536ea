"""Whether a waiting request runs now, waits for something, or lacks room."""

from dataclasses import dataclass

import numpy as np

from raydix.ids import L3_SOURCE, PageKey, RequestId
from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.life.load_choice import Assessment
from raydix.runtime.scheduler.life.publishing import places_to_return
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.pages.page_needs import PageCounts, add_pages, pages_to_compute
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.block_table import BlockTable
from raydix.runtime.scheduler.request.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.run import Start
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import tiers_of
from raydix.runtime.scheduler.sources.host_view import HostView


@dataclass(frozen=True, slots=True)
class Follow:
    """The request waits for another one: until that brings a page, or runs no more."""

    leader: RequestId
    lacks: PageKey | None
    """The page that the other one brings; None if the two only may not run together."""


@dataclass(frozen=True, slots=True)
class WaitForPages:
    """The request waits for pages on their way from L3; others may go first."""

    lock: Lock
    """What it matches in L1, behind which pages that have come may be loaded ahead."""
    until_s: float | None
    """The time at which it waits no longer; None: it waits for all of them."""


@dataclass(frozen=True, slots=True)
class LookUpLost:
    """L2 has lost what L3 had brought for the request: it is looked up once more."""


@dataclass(frozen=True, slots=True)
class LackRoom:
    """The request waits for free pages; no other request may overtake it."""


@dataclass(frozen=True, slots=True)
class Run:
    """The request runs, from `start` on, or asks for a lease on what it loads."""

    lock: Lock
    table: BlockTable
    start: Start


Decision = Follow | WaitForPages | LookUpLost | LackRoom | Run


class Admission:
    """Decides what becomes of a waiting request that is looked at."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        view: HostView,
        rates: Rates,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._view = view
        self._rates = rates

    def decide(
        self, lane: Lane, request: RequestState, found: Assessment, now_s: float
    ) -> Decision:
        """Let a request run if there is room for it and nothing that it should wait for."""
        followed = self._followed(lane, request, found)
        if followed is not None:
            return followed

        lock = lane.l1.lock(found.prefix.match, found.num_locked_pages, now_s=now_s)
        num_wanted = _num_wanted_pages(lane, request, found)
        has_room = _would_fit(lane, num_wanted)
        if has_room and self._may_wait(request, found):
            until_s = self._waits_until_s(request, found, now_s)
            if until_s is None or now_s < until_s:
                return WaitForPages(lock, until_s)

        if has_room and self._has_lost_pages(request, found):
            lane.l1.withdraw(lock)
            return LookUpLost()
        load_pages = _allocate_loads(lane, found, num_wanted) if has_room else None
        if load_pages is None:
            lane.l1.withdraw(lock)
            return LackRoom()
        start = _start_of(self._settings, request, found)
        return Run(lock, _first_table(self._settings, found, start, load_pages), start)

    def _followed(self, lane: Lane, request: RequestState, found: Assessment) -> Follow | None:
        """The request that brings a page of this one's prompt, or beside which it may not run."""
        leader = _leader(lane, request, found)
        if leader is not None:
            # The last page that they share comes last: nothing before it is worth a look.
            last = self._last_shared_page(lane, request, leader)
            return Follow(leader, lane.waiting.prompt_key(request, last))
        if request.is_suspect:
            for other in lane.running.values():
                if other.is_suspect:
                    return Follow(other.request_id, None)
        return None

    def _last_shared_page(self, lane: Lane, request: RequestState, leader: RequestId) -> int:
        """The last page that a request will find in L1 when its leader is done."""
        other = self._requests.living[leader].chain
        promotion = lane.promotions.get(leader)
        num_other = other.num_prompt_pages if promotion is None else promotion.num_pages
        return min(num_other, request.chain.num_shared_pages(other)) - 1

    def _may_wait(self, request: RequestState, found: Assessment) -> bool:
        """Whether pages that the request lacks may be on their way from L3."""
        prefetch, view = request.prefetch, self._view
        num_reusable = self._settings.reusable_pages(request.num_prompt)
        num_pending = num_reusable - found.prefix.num_pages
        if not prefetch.is_pending or num_pending <= 0 or not self._may_come(request):
            return False
        num_tokens = num_pending * self._settings.page_size
        is_from_l3 = prefetch.fetch_from == L3_SOURCE
        if is_from_l3 and not prefetch.has_report and num_tokens < view.min_l3_tokens:
            # HostMemory will not ask L3, so nothing is on its way.
            prefetch.give_up(PageSource.BELOW_MIN_TOKENS)
            return False
        return True

    def _may_come(self, request: RequestState) -> bool:
        """Whether pages may come from where they are looked for."""
        is_from_peer = request.prefetch.fetch_from != L3_SOURCE
        return self._view.is_usable and (is_from_peer or self._view.has_storage is not False)

    def _waits_until_s(
        self, request: RequestState, found: Assessment, now_s: float
    ) -> float | None:
        """When pages on their way are worth no more patience; None: they are in any case."""
        num_reusable = self._settings.reusable_pages(request.num_prompt)
        num_pending = num_reusable - found.prefix.num_pages
        num_tokens = num_pending * self._settings.page_size
        return prefetch_deadline_s(
            self._settings.prefetch,
            first_runnable_s=request.prefetch.note_runnable(now_s),
            pending_tokens=num_tokens,
            recompute_s=self._rates.prefill.predict_s(num_tokens, now_s),
            answer_s=self._view.l3_answer_s if request.prefetch.fetch_from == L3_SOURCE else 0.0,
        )

    def _has_lost_pages(self, request: RequestState, found: Assessment) -> bool:
        """Whether L2 lost what L3 brought while the request waited for room.

        L3 may bring it again.
        """
        settings = self._settings
        if (
            not self._may_come(request)
            or settings.prefetch.strategy is PrefetchStrategy.BEST_EFFORT
        ):
            return False
        return request.prefetch.has_lost(settings.reaches, found.prefix.num_known_pages)


def _leader(lane: Lane, request: RequestState, found: Assessment) -> RequestId | None:
    """The request that computes or loads the page behind this request's match in L1."""
    # Most often nobody does: then no key need be hashed.
    key = None
    if lane.waiting.has_leaders:
        key = lane.waiting.prompt_key(request, found.prefix.num_l1_pages)
    return None if key is None else lane.waiting.leader_of(key)


def _start_of(settings: SchedulerSettings, request: RequestState, found: Assessment) -> Start:
    """Where a request takes up its chain: the `Start` of its run."""
    prefix, num_pages = found.prefix, found.num_start_pages
    return Start(
        num_pages=num_pages,
        tiers=tiers_of(settings, num_pages, found.loads),
        loads=found.loads,
        num_left_pages=prefix.num_pages - num_pages,
        checkpoints=places_to_return(settings, request, prefix.num_known_pages),
    )


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
