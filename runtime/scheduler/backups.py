"""Which pages are copied from L1 to L2, and when."""

import itertools
from collections.abc import Iterable, Iterator

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import RadixTree, Victim
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.host_view import HostView
from raydix.runtime.scheduler.settings import SchedulerSettings

NewPage = tuple[PageKey, tuple[int, ...]]
"""A page's key, and its id in each KV group; 0 where the group holds nothing of it."""

_MAX_PAGES_PER_PLAN = 256
"""Of each KV group."""
_MAX_DIRTY_PAGES = 65_536
_MAX_INSPECTED_PAGES = 256
"""Pages that go next and are inspected per step."""
_PAGES_PER_CLEAN_PAGE = 16
"""One page in so many is kept free or clean ahead of need."""
_PAGES_PER_STEP_PAGE = 4
"""What one step may take is kept free or clean, too, up to one page in so many."""


class BackupQueue:
    """Owns: which pages of one lane are to be copied to L2, and what is known of their use."""

    def __init__(self, settings: SchedulerSettings, host: HostView, counters: Counters) -> None:
        self._settings = settings
        self._host = host
        self._counters = counters
        self._dirty: list[dict[PageKey, int]] = [{} for _ in settings.layout.groups]
        """Per KV group, pages to be copied and not evicted yet, oldest first: key to page id."""
        self._copying: list[set[PageKey]] = [set() for _ in settings.layout.groups]
        self._num_uses: dict[PageKey, int] = {}
        """Distinct requests that used a page; kept under `write_through_selective` only."""
        self._inspected: dict[bytes, NewPage] = {}
        """Pages that go next and that L2 has or is to get, by short key."""
        self._lost: set[bytes] = set()
        """Short keys of inspected pages that L2 has lost since, in some group.

        They are looked at with the next rows, and not at once: two tiers that are both full would
        copy pages to and fro for ever.
        """

    def __len__(self) -> int:
        return sum(map(len, self._dirty))

    def offer_new(self, pages: Iterable[NewPage]) -> None:
        """These pages have just been published in L1."""
        if self._settings.write_policy is WritePolicy.WRITE_THROUGH:
            for page in pages:
                self._add(page)

    def count_use(self, keys: bytes, page_ids: PageIds) -> None:
        """One more request uses these pages: those that enough requests have used get a copy."""
        for page in pages_with_keys(split_keys(keys), page_ids):
            key = page[0]
            self._num_uses[key] = self._num_uses.get(key, 0) + 1
            if self._num_uses[key] >= self._settings.write_threshold:
                self._add(page)

    def add_all(self, tree: RadixTree) -> None:
        """Before a clean stop: under `write_back`, copy all that is in L1 alone, heads first."""
        if self._settings.write_policy is not WritePolicy.WRITE_BACK:
            return
        for run in tree.unlocked():
            for page in pages_with_keys(split_keys(run.keys), run.page_ids):
                self._add(page)

    def clean_ahead(self, tree: RadixTree, *, num_free: int) -> None:
        """Back up what will be evicted next and L2 does not hold, before its page is needed."""
        settings = self._settings
        per_step = -(-settings.prefill_budget_tokens // settings.page_size)
        low_water = max(
            settings.max_pages // _PAGES_PER_CLEAN_PAGE,
            min(per_step, settings.max_pages // _PAGES_PER_STEP_PAGE),
            1,
        )
        wanted = low_water - num_free
        if wanted <= 0 or not self._host.is_usable:
            return

        for short in list(itertools.islice(self._lost, _MAX_INSPECTED_PAGES)):
            self._lost.discard(short)
            page = self._inspected.get(short)
            if page is not None:
                self._clean(page)

        # The tree knows how far it was inspected: a step looks only at what has come since, and
        # at a bounded number of pages.
        num_left = max(_MAX_INSPECTED_PAGES, 2 * per_step)
        for victim in tree.inspect_ahead(wanted):
            num_left -= victim.num_pages
            for page in pages_with_keys(split_keys(victim.keys), victim.page_ids):
                self._inspected[page[0][:MIRROR_KEY_BYTES]] = page
                self._clean(page)
            if num_left <= 0 or len(self) >= _MAX_DIRTY_PAGES:
                return

    def take(self) -> list[tuple[list[PageKey], list[int]]]:
        """Per KV group, keys and ids of the oldest pages for which there are granted host pages."""
        return [self._take_group(group) for group in range(len(self._dirty))]

    def _take_group(self, group: int) -> tuple[list[PageKey], list[int]]:
        keys: list[PageKey] = []
        page_ids: list[int] = []
        if not self._host.is_usable:
            return keys, page_ids

        dirty = self._dirty[group]
        limit = min(_MAX_PAGES_PER_PLAN, self._host.num_granted(group))
        while dirty and len(keys) < limit:
            key = next(iter(dirty))
            page_id = dirty.pop(key)
            if not self._host.has(group, key):
                keys.append(key)
                page_ids.append(page_id)
        self._copying[group].update(keys)
        return keys, page_ids

    def finish(self, keys: tuple[bytes, ...]) -> None:
        """The copies of these pages of each group are done."""
        for copying, done in zip(self._copying, keys, strict=True):
            copying.difference_update(split_keys(done))

    def count_eviction(self, victim: Victim) -> None:
        """Pages make way for others; those that L2 does not hold are lost, and never waited for."""
        num_dropped = 0
        if self._settings.has_host_memory:
            starts = range(0, len(victim.keys), KEY_BYTES)
            num_dropped = sum(
                not self._host.has_all(victim.keys[i : i + KEY_BYTES]) for i in starts
            )
        self._counters.count_eviction(victim.num_pages, num_dropped=num_dropped)

    def forget(self, victim: Victim) -> None:
        """These pages have left L1."""
        if not (len(self) or self._num_uses or self._inspected):
            return
        for key, page_ids in pages_with_keys(split_keys(victim.keys), victim.page_ids):
            for dirty, page_id in zip(self._dirty, page_ids, strict=True):
                if page_id:
                    dirty.pop(key, None)
            if victim.is_removed:
                self._num_uses.pop(key, None)
                self._inspected.pop(key[:MIRROR_KEY_BYTES], None)
                self._lost.discard(key[:MIRROR_KEY_BYTES])

    def note_dropped(self, short_keys: Iterable[bytes]) -> None:
        """L2 holds these pages no more."""
        self._lost.update(key for key in short_keys if key in self._inspected)

    def note_new_host(self) -> None:
        """A HostMemory is there that may hold nothing."""
        self._lost.update(self._inspected)

    def note_lost_host(self) -> None:
        """There is nowhere to copy to."""
        for dirty in self._dirty:
            dirty.clear()

    def _clean(self, page: NewPage) -> None:
        is_selective = self._settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        if not is_selective or self._num_uses.get(page[0], 0) >= self._settings.write_threshold:
            self._add(page)

    def _add(self, page: NewPage) -> None:
        """Copy the page in each group that holds it, unless L2 has it there or is to get it."""
        if not self._settings.has_host_memory:
            return
        key, page_ids = page
        for group, page_id in enumerate(page_ids):
            dirty = self._dirty[group]
            is_known = key in dirty or key in self._copying[group]
            if not page_id or is_known or self._host.has(group, key):
                continue
            if len(dirty) >= _MAX_DIRTY_PAGES:
                self._counters.count(Count.BACKUP_QUEUE_FULL)
                continue
            dirty[key] = page_id


def pages_with_keys(keys: list[PageKey], page_ids: PageIds) -> Iterator[NewPage]:
    """The pages of a run one by one."""
    return zip(keys, zip(*[ids.tolist() for ids in page_ids], strict=True), strict=True)
