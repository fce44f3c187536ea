"""What is known of a waiting request whose turn has come. To look changes nothing."""

from dataclasses import dataclass

from raydix.ids import L3_SOURCE, PageKey, RequestId
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.scheduler.life.load_choice import Assessment, LoadChoice
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView


@dataclass(frozen=True, slots=True)
class Leader:
    """Another request, which one that waits is to follow."""

    name: RequestId
    brings: PageKey | None
    """The last page that it brings and both have; None if the two only may not run together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """Pages that a lookup may still bring to L2, and what it takes to compute them instead."""

    num_tokens: int
    """The number of tokens of these pages."""
    is_asked: bool
    """Whether HostMemory asks for so few tokens: if it does not, nothing is on its way."""
    answer_s: float
    """The least time in seconds that the answer takes."""
    recompute_s: float
    """The predicted seconds to compute these tokens."""
    first_runnable_s: float | None
    """Since when the request would have been admitted but for these pages; None: it was not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is decided by, of a request that may be admitted."""

    found: Assessment
    num_placed_pages: int
    """The number of cached pages by which the request has got its place."""
    leader: Leader | None
    coming: Coming | None
    has_lost_pages: bool
    """Whether L2 lost what L3 had brought, which L3 may bring again."""


class Looks:
    """Gathers the facts of one waiting request from all who know some."""

    def __init__(
        self,
        settings: SchedulerSettings,
        requests: Requests,
        choice: LoadChoice,
        view: HostView,
        rates: Rates,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._choice = choice
        self._view = view
        self._rates = rates

    def look(self, lane: Lane, request: RequestState, now_s: float) -> Facts:
        """The facts of a request that waits on a lane."""
        found = self._choice.assess(lane, request, now_s)
        return Facts(
            found=found,
            num_placed_pages=lane.waiting.num_cached_pages(request),
            leader=self._leader(lane, request, found.prefix.num_l1_pages),
            coming=self._coming(request, found.prefix.num_pages, now_s),
            has_lost_pages=self._has_lost_pages(request, found.prefix.num_known_pages),
        )

    def _leader(self, lane: Lane, request: RequestState, num_l1_pages: int) -> Leader | None:
        """The request that brings a page of this one's prompt, or beside which it may not run."""
        # Most often nobody does: then no key need be hashed.
        if lane.waiting.has_leaders:
            key = lane.waiting.prompt_key(request, num_l1_pages)
            name = None if key is None else lane.waiting.leader_of(key)
            if name is not None:
                # The last page that they share comes last: nothing before it is worth a look.
                last = self._last_shared_page(lane, request, name)
                return Leader(name, lane.waiting.prompt_key(request, last))
        if request.is_suspect:
            for other in lane.running.values():
                if other.is_suspect:
                    return Leader(other.request_id, None)
        return None

    def _last_shared_page(self, lane: Lane, request: RequestState, leader: RequestId) -> int:
        """The last page that a request will find in L1 when its leader is done."""
        promotion = lane.promotions.get(leader)
        other = promotion.chain if promotion is not None else self._requests.living[leader].chain
        num_other = other.num_prompt_pages if promotion is None else promotion.num_pages
        return min(num_other, request.chain.num_shared_pages(other)) - 1

    def _coming(self, request: RequestState, num_pages: int, now_s: float) -> Coming | None:
        """What may still come behind the `num_pages` that are cached; None: nothing."""
        prefetch = request.prefetch
        if not prefetch.is_pending:
            return None
        num_lacking = self._settings.reusable_pages(request.num_prompt) - num_pages
        if num_lacking <= 0 or not self._may_come(request):
            return None

        num_tokens = num_lacking * self._settings.page_size
        is_from_l3 = prefetch.fetch_from == L3_SOURCE
        is_too_little = is_from_l3 and num_tokens < self._view.min_l3_tokens
        return Coming(
            num_tokens=num_tokens,
            is_asked=prefetch.has_report or not is_too_little,
            answer_s=self._view.l3_answer_s if is_from_l3 else 0.0,
            recompute_s=self._rates.prefill.predict_s(num_tokens, now_s),
            first_runnable_s=prefetch.first_runnable_s,
        )

    def _may_come(self, request: RequestState) -> bool:
        """Whether pages may come from where they are looked for."""
        is_from_peer = request.prefetch.fetch_from != L3_SOURCE
        return self._view.is_usable and (is_from_peer or self._view.has_storage is not False)

    def _has_lost_pages(self, request: RequestState, num_known_pages: int) -> bool:
        """Whether L2 lost what L3 brought while the request waited for room."""
        settings = self._settings
        return (
            settings.prefetch.strategy is not PrefetchStrategy.BEST_EFFORT
            and self._may_come(request)
            and request.prefetch.has_lost(settings.reaches, num_known_pages)
        )
