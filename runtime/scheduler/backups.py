"""Which pages are copied from L1 to L2, and when."""

import itertools
from collections.abc import Iterable

from raydix.ids import PageKey
from raydix.runtime.cache.radix_tree import RadixTree, Victim
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.host_view import HostView
from raydix.runtime.scheduler.settings import SchedulerSettings

_MAX_PAGES_PER_PLAN = 256
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
        self._dirty: dict[PageKey, int] = {}
        """Pages to be copied, oldest first: key to page id. An evicted page leaves it."""
        self._copying: set[PageKey] = set()
        self._num_uses: dict[PageKey, int] = {}
        """Distinct requests that used a page; kept under `write_through_selective` only."""
        self._inspected: dict[bytes, tuple[PageKey, int]] = {}
        """Pages that go next and that L2 has or is to get: key and page id, by as much of the key
        as the mirror has.
        """
        self._lost: set[bytes] = set()
        """Those of the inspected pages that L2 has lost since. They are looked at with the next
        rows: else pages would go to and fro for ever between two tiers that are both full.
        """

    def __len__(self) -> int:
        return len(self._dirty)

    def offer_new(self, pages: Iterable[tuple[PageKey, int]]) -> None:
        """These pages have just been published in L1."""
        if self._settings.write_policy is WritePolicy.WRITE_THROUGH:
            for key, page_id in pages:
                self._add(key, page_id)

    def count_use(self, keys: bytes, page_ids: Int32Array) -> None:
        """One more request uses these pages: those that enough requests have used get a copy."""
        for key, page_id in zip(split_keys(keys), page_ids.tolist(), strict=True):
            self._num_uses[key] = self._num_uses.get(key, 0) + 1
            if self._num_uses[key] >= self._settings.write_threshold:
                self._add(key, page_id)

    def add_all(self, tree: RadixTree) -> None:
        """Before a clean stop: what `write_back` has kept in L1 alone goes to L2, heads of chains
        first.
        """
        if self._settings.write_policy is not WritePolicy.WRITE_BACK:
            return
        for run in tree.unlocked():
            for key, page_id in zip(split_keys(run.keys), run.page_ids[0].tolist(), strict=True):
                self._add(key, page_id)

    def clean_ahead(self, tree: RadixTree, *, num_free: int) -> None:
        """Back up what will be evicted next and L2 does not hold, before its page is needed."""
        settings = self._settings
        per_step = -(-settings.prefill_budget_tokens // settings.page_size)
        low_water = max(
            settings.num_pages // _PAGES_PER_CLEAN_PAGE,
            min(per_step, settings.num_pages // _PAGES_PER_STEP_PAGE),
            1,
        )
        wanted = low_water - num_free
        if wanted <= 0 or not self._host.is_usable:
            return

        for short in list(itertools.islice(self._lost, _MAX_INSPECTED_PAGES)):
            self._lost.discard(short)
            entry = self._inspected.get(short)
            if entry is not None:
                self._clean(*entry)

        # The tree knows how far it was inspected: a step looks only at what has come since, and
        # at a bounded number of pages.
        num_left = max(_MAX_INSPECTED_PAGES, 2 * per_step)
        for victim in tree.inspect_ahead(wanted):
            num_left -= victim.num_pages
            page_ids = victim.page_ids[0].tolist()
            for key, page_id in zip(split_keys(victim.keys), page_ids, strict=True):
                self._inspected[key[:MIRROR_KEY_BYTES]] = key, page_id
                self._clean(key, page_id)
            if num_left <= 0 or len(self._dirty) >= _MAX_DIRTY_PAGES:
                return

    def take(self) -> tuple[list[PageKey], list[int]]:
        """Keys and page ids of the oldest pages for which there are granted host pages."""
        keys: list[PageKey] = []
        page_ids: list[int] = []
        if not self._host.is_usable:
            return keys, page_ids

        limit = min(_MAX_PAGES_PER_PLAN, self._host.num_granted)
        while self._dirty and len(keys) < limit:
            key = next(iter(self._dirty))
            page_id = self._dirty.pop(key)
            if not self._host.has(key):
                keys.append(key)
                page_ids.append(page_id)
        self._copying.update(keys)
        return keys, page_ids

    def finish(self, keys: bytes) -> None:
        """The copies of these pages are done."""
        self._copying.difference_update(split_keys(keys))

    def count_eviction(self, victim: Victim) -> None:
        """Pages make way for others; those that L2 does not hold are lost, and never waited for."""
        num_dropped = 0
        if self._settings.has_host_memory:
            starts = range(0, len(victim.keys), KEY_BYTES)
            num_dropped = sum(not self._host.has(victim.keys[i : i + KEY_BYTES]) for i in starts)
        self._counters.count_eviction(victim.num_pages, num_dropped=num_dropped)

    def forget(self, victim: Victim) -> None:
        """These pages have left L1."""
        if self._dirty or self._num_uses or self._inspected:
            for key in split_keys(victim.keys):
                self._dirty.pop(key, None)
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
        self._dirty.clear()

    def _clean(self, key: PageKey, page_id: int) -> None:
        is_selective = self._settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
        if not is_selective or self._num_uses.get(key, 0) >= self._settings.write_threshold:
            self._add(key, page_id)

    def _add(self, key: PageKey, page_id: int) -> None:
        is_known = key in self._dirty or key in self._copying
        if not self._settings.has_host_memory or is_known or self._host.has(key):
            return
        if len(self._dirty) >= _MAX_DIRTY_PAGES:
            self._counters.count(Count.BACKUP_QUEUE_FULL)
            return
        self._dirty[key] = page_id
