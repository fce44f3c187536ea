"""Where what L1 and L2 lack of a prompt is looked for, by predicted times: a peer, L3, or nowhere.

What is believed of an origin is refuted by every lookup that it answers; one that is believed to be
too slow is tried again when that belief has faded, as `TimePredictor` says.
"""

from collections.abc import Sequence

from raydix.ids import L3_SOURCE, SourceId
from raydix.runtime.cache.page_key import ChainKeys
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix, find_prefix
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.sources.mirror import EitherHas, KnownPages
from raydix.runtime.scheduler.sources.origins import Offer, Origin, choose_offer


class FetchChoice:
    """Decides where HostMemory looks for pages of a waiting request."""

    def __init__(self, settings: SchedulerSettings, *, source: KvSource, rates: Rates) -> None:
        self._settings = settings
        self._source = source
        self._rates = rates

    def choose(self, request: RequestState, found: CachedPrefix, now_s: float) -> SourceId | None:
        """The next origin to be asked for what L1 and L2 lack, of which they have `found`.

        L3 is asked whatever is predicted, as only a lookup tells what it has. None: all that may
        have some of it have been asked, or to compute it is quicker.
        """
        prefetch = request.prefetch
        is_first = not prefetch.has_report
        if is_first and not self._source.origins.peers:
            return L3_SOURCE
        num_full = self._settings.reusable_pages(request.num_prompt)
        num_lacking = num_full - found.num_known_pages
        if num_lacking <= 0 or request.must_score:
            return L3_SOURCE if is_first else None

        offers = self._offers_of_peers(request, found, num_full, now_s)
        may_ask_l3 = not prefetch.has_asked(L3_SOURCE)
        may_ask_l3 &= self._source.may_have(L3_SOURCE, num_lacking)
        if offers and may_ask_l3:
            offers.append(self._hope_for_l3(num_lacking, now_s))
        best = choose_offer(offers)
        if best is not None:
            return best.origin.source
        return L3_SOURCE if is_first or may_ask_l3 else None

    def has_others(self, request: RequestState) -> bool:
        """Whether some origin has not been asked for this request."""
        prefetch, origins = request.prefetch, self._source.origins
        return not all(
            prefetch.has_asked(origin.source) for origin in (origins.storage, *origins.peers)
        )

    def _offers_of_peers(
        self, request: RequestState, found: CachedPrefix, num_full: int, now_s: float
    ) -> list[Offer]:
        """What each peer has, by its mirror, that lengthens the prefix."""
        if self._settings.load is LoadPolicy.NEVER:
            return []
        keys = ChainKeys(request.chain.keys(num_full))
        offers = [
            self._offer_of_peer(peer, found, keys, num_full, now_s)
            for peer in self._source.origins.peers
            if not request.prefetch.has_asked(peer.source)
        ]
        return [offer for offer in offers if offer is not None]

    def _offer_of_peer(
        self, peer: Origin, found: CachedPrefix, keys: ChainKeys, num_full: int, now_s: float
    ) -> Offer | None:
        settings, own = self._settings, self._source.view.keys
        if peer.keys is None:
            return None
        either = EitherHas(own, peer.keys)
        if not self._may_lengthen(either, found, keys):
            return None
        both = find_prefix(settings, either, found.match, keys, max_pages=num_full)
        num_gained = both.num_pages - found.num_pages
        if num_gained <= 0:
            return None
        num_fetched = [
            own.count_lacking(group, keys, pages) for group, pages in enumerate(both.loads)
        ]
        num_loaded = [len(pages) for pages in both.loads]
        return self._offer(peer, num_gained, num_fetched, num_loaded, now_s)

    def _may_lengthen(self, known: KnownPages, found: CachedPrefix, keys: ChainKeys) -> bool:
        """Whether `known` may have more of a chain than `found`, by a look at one of its pages.

        Most peers lack the first page that is lacking here, without which nothing is of use.
        """
        first = found.num_known_pages
        if found.num_pages < first:
            # What is lacking is a window before that page.
            return True
        reaches = self._settings.reaches
        full = [group for group, reach in enumerate(reaches) if reach is None]
        return all(known.has_page(group, keys, first) for group in full)

    def _hope_for_l3(self, num_lacking: int, now_s: float) -> Offer:
        """What L3 may have: all that is lacking."""
        reaches = self._settings.reaches
        num_pages = [num_lacking if reach is None else min(reach, num_lacking) for reach in reaches]
        return self._offer(self._source.origins.storage, num_lacking, num_pages, num_pages, now_s)

    def _offer(
        self,
        origin: Origin,
        num_gained: int,
        num_fetched: Sequence[int],
        num_loaded: Sequence[int],
        now_s: float,
    ) -> Offer:
        settings = self._settings
        fetch_s = origin.rate.predict_s(settings.bytes_of(num_fetched), now_s)
        if origin.source == L3_SOURCE:
            fetch_s = max(fetch_s, self._source.view.l3_answer_s)
        seconds = fetch_s + self._rates.load.predict_s(settings.bytes_of(num_loaded), now_s)
        compute_s = self._rates.prefill.predict_s(num_gained * settings.page_size, now_s)
        if settings.load is LoadPolicy.ALWAYS:
            # Whatever can be had is not computed; of two origins more pages are better.
            compute_s += seconds
        return Offer(origin=origin, num_pages=num_gained, seconds=seconds, compute_s=compute_s)
