"""Which lane takes a request: a new one, or one whose lane has lost its ranks."""

import itertools
import math
from collections.abc import Iterator, Sequence

from raydix.errors import AccountingError
from raydix.runtime.cache.recent_prefixes import RecentPrefixes
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.routing.choice import Place, choose_place
from raydix.runtime.routing.last_places import LastPlaces
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers

_MAX_HASHED_PAGES = 1024
"""The most page keys that are hashed per event, so that a long prompt holds nobody up."""
_MAX_PLACED = 32
"""The most requests that get a lane per event: a lane that loses its ranks may have thousands."""
_MAX_SOUGHT_PAGES = 16_384
"""The most pages that one event looks up on all lanes to place requests; then no further one gets a
lane. That takes 2 ms, and a prompt of 100,000 tokens has thousands of pages.
"""
_NUM_RECENT_PAGES = 1 << 20
"""The number of prompt pages that are remembered: 8 MiB, none of it used without windows."""


class Placing:
    """Gives lanes to requests that have none, some with each event."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        rates: Rates,
        life: Transitions,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._rates = rates
        self._life = life
        self._timers = timers
        self._last_lanes = LastPlaces[int]()
        self._prefixes = RecentPrefixes(_NUM_RECENT_PAGES)

    def place_some(self, now_s: float, *, until_s: float = math.inf) -> int:
        """Hash page keys of requests without a lane, oldest first, and place those that are done.

        The number per event is bounded; returns how many more keys the event may hash. Those that
        have come after `until_s` are passed over: the engine is not awake for them.
        """
        num_left, num_sought = _MAX_HASHED_PAGES, 0
        # With most events there is none. While the engine sleeps thousands may wait, and none is.
        if until_s == -math.inf or not self._requests.unplaced:
            return num_left

        for request in list(itertools.islice(self._to_place(until_s), _MAX_PLACED)):
            if num_sought >= _MAX_SOUGHT_PAGES:
                break
            chain = request.chain
            num_full = chain.num_prompt_pages if self._settings.prefix_caching else 0
            num_left -= chain.extend_keys(num_full, num_left)
            if chain.num_keys < num_full:
                break
            if self._settings.keeps_windows and request.num_shared_pages is None:
                self._compare(request, chain.keys(num_full))
            self._place(request, now_s)
            num_sought += num_full * len(self._lanes)

        if next(self._to_place(until_s), None) is not None:
            self._timers.add(now_s)
        return num_left

    def _to_place(self, until_s: float) -> Iterator[RequestState]:
        unplaced = self._requests.unplaced.values()
        return itertools.takewhile(lambda request: request.arrival_s <= until_s, unplaced)

    def _compare(self, request: RequestState, keys: bytes) -> None:
        """Note how much of a prompt earlier ones began with, and remember it for later ones."""
        request.note_shared(self._prefixes.num_shared(keys))
        self._prefixes.meet(keys)

    def _place(self, request: RequestState, now_s: float) -> None:
        """Put a request that holds nothing on a lane."""
        found, lane = self._choose_lane(request, now_s)
        if request.submit.session_id is not None:
            self._last_lanes.remember(request.submit.session_id, lane.index)
        self._life.place(request, lane, found, now_s)

    def _choose_lane(self, request: RequestState, now_s: float) -> tuple[CachedPrefix, Lane]:
        """The lane with the least predicted time to first token; for a sample that of its prompt.

        A prefix that a lane is about to compute is not computed there again. Who shares it goes
        there, unless that takes longer than to compute it elsewhere, which takes others' time, too.

        Ties go to the session's lane, then to the longest prefix, then to the fewest requests.
        """
        first = self._requests.first_of_samples(request)
        if first is not None and self._lanes[first.lane].is_attached:
            lane = self._lanes[first.lane]
            return self._find_prefix(request, lane), lane

        lanes = [lane for lane in self._lanes if lane.is_attached] or self._lanes
        if not lanes:
            raise AccountingError("there is no lane; expected parallel.dp of them")
        if request.is_suspect:
            # Those of a step group share a lane, where they run one at a time.
            lanes = [lane for lane in lanes if lane.is_first_of_group]
        if len(lanes) == 1:
            return self._find_prefix(request, lanes[0]), lanes[0]
        is_sharing = self._settings.prefix_caching
        coming = [lane.waiting.coming.num_pages(request) if is_sharing else 0 for lane in lanes]
        prefixes = [self._find_prefix(request, lane) for lane in lanes]
        most_pages = max(coming)
        places = [
            self._place_on(request, lane, found, now_s, num_coming=num, most_coming=most_pages)
            for lane, found, num in zip(lanes, prefixes, coming, strict=True)
        ]
        chosen = choose_place(places)
        return prefixes[chosen], lanes[chosen]

    def _place_on(
        self,
        request: RequestState,
        lane: Lane,
        found: CachedPrefix,
        now_s: float,
        *,
        num_coming: int,
        most_coming: int,
    ) -> Place:
        """What it takes to serve a request on a lane that is about to compute `num_coming` pages.

        `most_coming`: the most of its pages that some lane is about to compute.
        """
        tokens_per_s = self._rates.prefill.rate(now_s)
        num_pages = max(found.num_pages, num_coming)
        num_repeated = max(0, most_coming - num_pages) * self._settings.page_size
        return Place(
            wait_s=(lane.waiting.num_tokens + lane.num_tokens_to_compute) / tokens_per_s,
            own_s=self._predict_prefill_s(request, found, num_pages, now_s),
            # What another lane computes anyway takes this one's time from others.
            caused_s=num_repeated / tokens_per_s,
            is_preferred=lane.index == self._last_lanes.place_of(request.submit.session_id),
            num_near_pages=max(found.num_l1_pages, num_coming),
            num_requests=len(lane.running) + len(lane.waiting),
        )

    def _find_prefix(self, request: RequestState, lane: Lane) -> CachedPrefix:
        return self._source.find_prefix(request, lane.match(request.chain))

    def _predict_prefill_s(
        self, request: RequestState, found: CachedPrefix, num_pages: int, now_s: float
    ) -> float:
        """How long it takes to load what L2 holds of the request, and to compute the rest.

        `num_pages`: what it will find once others are done.
        """
        settings = self._settings
        size = settings.page_size

        load_s = self._rates.load.predict_s(self._settings.bytes_of(map(len, found.loads)), now_s)
        recompute_s = self._rates.prefill.predict_s(found.num_l2_pages * size, now_s)
        match settings.load:
            case LoadPolicy.ALWAYS:
                reuse_s = load_s
            case LoadPolicy.NEVER:
                reuse_s = recompute_s
            case LoadPolicy.AUTO:
                reuse_s = min(load_s, recompute_s)

        num_missing = request.num_tokens - num_pages * size
        return reuse_s + self._rates.prefill.predict_s(num_missing, now_s)
