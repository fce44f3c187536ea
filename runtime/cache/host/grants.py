"""Free host pages in a Scheduler's hands, to back pages up into."""

from collections import Counter
from collections.abc import Sequence

from raydix.ids import HostPageId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.config.page_counts import pages_within
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import PagesGranted

_MAX_GRANTED_PAGES = 512
_MAX_GRANTED_BYTES = 2 << 30
"""Four times what one copy takes: long steps leave several, and the next need not wait."""
_GRANTED_DIVISOR = 8
"""Schedulers are kept stocked with one page in so many of L2, all of them together."""
_SMALL_L2_DIVISOR = 4
_SMALL_L2_PAGES = 64
"""A small L2 grants one page in fewer, up to so many: a step may leave as many to be copied."""
_SMALL_L2_BYTES = 256 << 20


def _stock(num_pages: int, page_bytes: int) -> int:
    """The pages of a KV group that Schedulers are kept stocked with, of those that it has."""
    few = pages_within(_SMALL_L2_BYTES, page_bytes, _SMALL_L2_PAGES)
    many = pages_within(_MAX_GRANTED_BYTES, page_bytes, _MAX_GRANTED_PAGES)
    of_small_l2 = min(num_pages // _SMALL_L2_DIVISOR, few)
    return max(1, of_small_l2, min(num_pages // _GRANTED_DIVISOR, many))


class HostGrants:
    """Owns: FILLING pages that one Scheduler holds until it commits or abandons them."""

    def __init__(self, index: HostIndex, fair_share: Sequence[int], counters: Counter[str]) -> None:
        """Start without grants. `fair_share`: pages per KV group, if each has as many slabs."""
        self._index = index
        self._counters = counters
        self._max_pages = list(map(_stock, fair_share, index.page_bytes))
        self._pages: list[set[HostPageId]] = [set() for _ in fair_share]

    @property
    def num_pages(self) -> int:
        """The number of granted pages of all KV groups."""
        return sum(map(len, self._pages))

    def page_ids(self) -> list[HostPageId]:
        """The granted pages of all KV groups."""
        return [page_id for pages in self._pages for page_id in pages]

    def take_back(self, page_id: int, generation: int) -> bool:
        """End a grant; returns False, and counts it as stale, if it is not the grant meant."""
        if self._index.is_filling(page_id, generation):
            for pages in self._pages:
                if page_id in pages:
                    pages.remove(HostPageId(page_id))
                    return True
        self._counters["stale_pages"] += 1
        return False

    def take_some_back(self, page_ids: Int32Array, generations: Int32Array) -> list[HostPageId]:
        """End these grants and return the pages of those that are not stale."""
        pairs = zip(page_ids.tolist(), generations.tolist(), strict=True)
        return [
            HostPageId(page_id)
            for page_id, generation in pairs
            if self.take_back(page_id, generation)
        ]

    def take_all_back(self) -> list[HostPageId]:
        """The Scheduler is gone: end all grants and return their pages."""
        taken = self.page_ids()
        for pages in self._pages:
            pages.clear()
        return taken

    def _share(self, group: int, num_schedulers: int) -> int:
        """The pages of a group that each of so many Schedulers is kept stocked with."""
        return self._max_pages[group] // num_schedulers or 1

    def is_short(self, num_schedulers: int) -> bool:
        """Whether the Scheduler has less than its share among so many."""
        for group, granted in enumerate(self._pages):
            if len(granted) < self._share(group, num_schedulers):
                return True
        return False

    def fill_up(self, num_schedulers: int) -> list[PagesGranted]:
        """Grant what the Scheduler lacks of its share among so many, as far as L2 has pages."""
        grants = []
        for group, granted in enumerate(self._pages):
            num_lacking = self._share(group, num_schedulers) - len(granted)
            if new := self._index.allocate_some(group, num_lacking):
                granted.update(new)
                generations = self._index.generations_of(new)
                grants.append(
                    PagesGranted(
                        host_page_ids=int32_array(new), generations=generations, group=group
                    )
                )
        return grants
