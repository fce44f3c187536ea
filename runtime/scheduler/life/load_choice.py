"""Whether what L2 holds of a request is loaded or computed, by what is believed to be cheaper.

What is believed of loads is refuted by loads, and of computing by steps. The way that seems dearer
is tried with some of a request's pages when it has not been seen for a while: see `trials.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.scheduler.life.trials import (
    Trials,
    num_affordable,
    num_soon_done,
)
from raydix.runtime.scheduler.pages.page_needs import PageCounts
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix
from raydix.runtime.scheduler.sources.kv_source import KvSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What a request would find in L1 and L2, and how much of the latter it would load."""

    prefix: CachedPrefix
    loaded: CachedPrefix | None
    """The prefix as far as it would be loaded from L2; None if nothing would be."""
    trial_load_s: float | None = None
    """The seconds that the load of a trial may take: whatever it takes beyond them is a cost of the
    trial. None if no way is tried that is believed to be dearer.
    """

    @property
    def num_start_pages(self) -> int:
        """The number of cached pages that the request would begin behind."""
        return self.prefix.num_l1_pages if self.loaded is None else self.loaded.num_pages

    @property
    def num_locked_pages(self) -> int:
        """The number of cached pages at the start that L1 has, perhaps without windows."""
        return min(self.num_start_pages, self.prefix.match.num_pages)

    @property
    def loads(self) -> tuple[Sequence[int], ...]:
        """Per KV group, the pages that the request would load from L2."""
        return ((),) * len(self.prefix.loads) if self.loaded is None else self.loaded.loads

    @property
    def num_loaded(self) -> PageCounts:
        """Per KV group, the number of pages that the request would load from L2."""
        return tuple(map(len, self.loads))


class LoadChoice:
    """Decides what of a request's pages in L2 is loaded, and what is computed."""

    def __init__(
        self,
        settings: SchedulerSettings,
        source: KvSource,
        rates: Rates,
        trials: Trials,
    ) -> None:
        self._settings = settings
        self._source = source
        self._rates = rates
        self._trials = trials

    def assess(self, lane: Lane, request: RequestState, now_s: float) -> Assessment:
        """What L1 and L2 hold of the request, and how much of it is to be loaded."""
        prefix = self._source.find_prefix(request, lane.match(request.chain))
        if not prefix.num_l2_pages:
            return Assessment(prefix=prefix, loaded=None)
        if self._settings.load is not LoadPolicy.AUTO:
            is_loaded = self._settings.load is LoadPolicy.ALWAYS
            return Assessment(prefix=prefix, loaded=prefix if is_loaded else None)

        load, prefill = self._rates.load, self._rates.prefill
        num_bytes = self._settings.bytes_of(map(len, prefix.loads))
        num_tokens = prefix.num_l2_pages * self._settings.page_size
        load_s, prefill_s = load.predict_s(num_bytes, now_s), prefill.predict_s(num_tokens, now_s)
        load_test_s = load.last_test_s(num_bytes, prefill_s)
        prefill_test_s = prefill.last_test_s(num_tokens, load_s)

        # Were the dearer way tried again before the usual one is seen, nothing would refute that.
        if load_s < prefill_s:
            usual = Assessment(prefix=prefix, loaded=prefix)
            is_due = prefill_test_s <= load_test_s
            is_due = is_due and prefill.is_worth_a_trial(num_tokens, load_s, now_s)
        else:
            usual = Assessment(prefix=prefix, loaded=None)
            is_due = load_test_s <= prefill_test_s
            is_due = is_due and load.is_worth_a_trial(num_bytes, prefill_s, now_s)
        tried = self._trial(lane, request, usual, now_s) if is_due else None
        return tried or usual

    def load_s(self, num_bytes: int, now_s: float) -> float:
        """How many seconds a load of so many bytes is believed to take."""
        return self._rates.load.predict_s(num_bytes, now_s)

    def is_load_cheaper(self, num_bytes: int, num_pages: int, now_s: float) -> bool:
        """Whether to load `num_bytes` rather than compute `num_pages`."""
        settings = self._settings
        match settings.load:
            case LoadPolicy.ALWAYS:
                return True
            case LoadPolicy.NEVER:
                return False
            case LoadPolicy.AUTO:
                load_s = self._rates.load.predict_s(num_bytes, now_s)
                return load_s < self._rates.prefill.predict_s(num_pages * settings.page_size, now_s)

    def _trial(
        self, lane: Lane, request: RequestState, usual: Assessment, now_s: float
    ) -> Assessment | None:
        """An assessment that takes the dearer way for what is soon done and paid for."""
        prefix, affordable_s = usual.prefix, self._trials.affordable_s(now_s)
        num_pages = prefix.num_l2_pages
        load_s, compute_s = (self._costs_s(usual, loaded, now_s) for loaded in (prefix, None))
        usual_s = min(sum(load_s), sum(compute_s))
        page_s = (max(sum(load_s), sum(compute_s)) - usual_s) / num_pages
        num_most = num_affordable(num_pages, page_s, affordable_s)
        if not num_most:
            return None

        num_tried = num_soon_done(num_most, page_s)
        if usual.loaded is None:
            found = self._find_loadable(lane, request, prefix, range(num_tried, num_most + 1))
        else:
            found = self._source.find_prefix(
                request, lane.match(request.chain), prefix.num_pages - num_tried
            )
        loaded = found if found.num_l2_pages else None

        # Of windows the same is loaded for any number of pages, so the cost is looked at once more.
        costs_s = self._costs_s(usual, loaded, now_s)
        tried = Assessment(prefix=prefix, loaded=loaded)
        is_usual = tried.num_start_pages == usual.num_start_pages
        if is_usual or sum(costs_s) - usual_s > affordable_s:
            return None
        # Where computing is tried, the load is the usual way: it is no cost of the trial.
        most_s = costs_s[0] if usual.loaded is None else math.inf
        return replace(tried, trial_load_s=most_s)

    def _find_loadable(
        self,
        lane: Lane,
        request: RequestState,
        prefix: CachedPrefix,
        nums_pages: range,
    ) -> CachedPrefix:
        """What L1 holds of a prefix, and about the fewest pages of L2 that can be loaded.

        `nums_pages`: how many these may be. Where windows are missing a request can be taken up at
        few places; so the number is doubled until there is one, which costs no more than to look at
        twice as many pages.
        """
        num_pages, num_most = nums_pages[0], nums_pages[-1]
        found = self._source.find_prefix(
            request, lane.match(request.chain), prefix.num_l1_pages + num_pages
        )
        while not found.num_l2_pages and num_pages < num_most:
            num_pages = min(2 * num_pages, num_most)
            found = self._source.find_prefix(
                request, lane.match(request.chain), prefix.num_l1_pages + num_pages
            )
        return found

    def _costs_s(
        self, usual: Assessment, loaded: CachedPrefix | None, now_s: float
    ) -> tuple[float, float]:
        """Predicted seconds to load some of a prefix from L2, and to compute the rest.

        A part of it is taken to load in that part of the time, even if loads of other sizes were
        never seen: if it does not, the next trial has to wait. So is a part that a trial computes:
        of steps of one size nobody knows what is fixed. If computing is the usual way, its fixed
        time stays.
        """
        prefix = usual.prefix
        num_pages, load_s = prefix.num_l1_pages, 0.0
        if loaded is not None:
            num_pages = loaded.num_pages
            num_bytes = self._settings.bytes_of(map(len, prefix.loads))
            part = self._settings.bytes_of(map(len, loaded.loads)) / num_bytes
            load_s = part * self._rates.load.predict_s(num_bytes, now_s)

        num_tokens = (prefix.num_pages - num_pages) * self._settings.page_size
        if usual.loaded is None:
            return load_s, num_tokens * self._rates.prefill.line(now_s).unit_s
        most_tokens = prefix.num_l2_pages * self._settings.page_size
        return load_s, num_tokens / most_tokens * self._rates.prefill.predict_s(most_tokens, now_s)
