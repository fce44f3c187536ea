"""Free host pages in the Scheduler's hands, to back pages up into."""

from collections import Counter
from collections.abc import Sequence

from raydix.ids import HostPageId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import PagesGranted

_MAX_GRANTED_PAGES = 256
_GRANTED_DIVISOR = 8
"""The Scheduler is kept stocked with one page in so many of L2."""


class HostGrants:
    """Owns: FILLING pages that the Scheduler holds until it commits or abandons them."""

    def __init__(self, index: HostIndex, fair_share: Sequence[int], counters: Counter[str]) -> None:
        """Start without grants. `fair_share`: pages per KV group, if each has as many slabs."""
        self._index = index
        self._counters = counters
        self._max_pages = [
            max(1, min(pages // _GRANTED_DIVISOR, _MAX_GRANTED_PAGES)) for pages in fair_share
        ]
        self._pages: list[set[HostPageId]] = [set() for _ in fair_share]

    @property
    def num_pages(self) -> int:
        """The number of granted pages of all KV groups."""
        return sum(map(len, self._pages))

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
        taken = [page_id for pages in self._pages for page_id in pages]
        for pages in self._pages:
            pages.clear()
        return taken

    def fill_up(self) -> list[PagesGranted]:
        """Grant what the Scheduler's stock lacks, as far as L2 has pages."""
        grants = []
        for group, granted in enumerate(self._pages):
            new: list[HostPageId] = []
            while len(granted) + len(new) < self._max_pages[group]:
                page_id = self._index.allocate(group)
                if page_id is None:
                    break
                new.append(page_id)

            if new:
                granted.update(new)
                generations = int32_array(self._index.generation(page_id) for page_id in new)
                grants.append(
                    PagesGranted(
                        host_page_ids=int32_array(new), generations=generations, group=group
                    )
                )
        return grants
