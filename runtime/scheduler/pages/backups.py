"""Which pages are copied from L1 to L2, and when."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, split_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_node import RadixNode, Victim
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.pages.backup_amounts import low_water, pages_of_copy
from raydix.runtime.scheduler.pages.inspected import NewPage, inspected_page
from raydix.runtime.scheduler.pages.use_counts import UseCounts
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView

_Key = TypeVar("_Key", bound=bytes)

_FEW_PAGES = 32
"""Fewer dirty pages than this wait for more while steps run, as even a small copy takes a turn of
every actor.
"""
_PAGES_PER_FEW = 64
"""The most dirty pages that wait for more in a small pool: one in so many, as a small pool needs
its pages again before long.
"""
_GATHER_S = 0.02
"""Seconds after the last copy began, from which on even one dirty page is worth a copy."""
_MAX_DIRTY_PAGES = 65_536
_MAX_INSPECTED_PAGES = 256
"""The most pages, of those that are evicted next, that are inspected per step."""


class BackupQueue:
    """Owns: which pages of one lane are to be copied to L2."""

    def __init__(
        self, settings: SchedulerSettings, host: HostView, counters: Counters, uses: UseCounts
    ) -> None:
        """Start with nothing to copy. `uses` counts uses of the pages of all lanes under
        `write_through_selective`, and notes under `write_back` which pages were lost.
        """
        self._settings = settings
        self._pages_per_step = -(-settings.prefill_budget_tokens // settings.page_size)
        self._host = host
        self._counters = counters
        self._uses = uses
        self._dirty: list[OrderedDict[PageKey, int]] = [
            OrderedDict() for _ in settings.layout.groups
        ]
        """Per KV group, pages to be copied and not evicted yet, oldest first: key to page id.

        To look for the first item of a dict takes as long as all that have left its front.
        """
        self._taken_s = -math.inf
        """The time at which pages were last taken for a copy."""
        self._copying: list[set[PageKey]] = [set() for _ in settings.layout.groups]
        self._windows: list[dict[PageKey, int] | None] = [
            None if reach is None else {} for reach in settings.reaches
        ]
        """Per WINDOW group, pages in L1 that L2 is to keep, before checkpoints: key to page id."""
        self._groups = range(settings.num_groups)
        reaches = list(enumerate(settings.reaches))
        self._full_groups = [group for group, reach in reaches if reach is None]
        self._window_groups = [group for group, reach in reaches if reach is not None]
        self._unclean: list[OrderedDict[PageKey, int]] = [
            OrderedDict() for _ in settings.layout.groups
        ]
        """Pages of `_windows` that are copied when their pool runs short, under `write_back` only.
        """
        self._num_taken = [0] * settings.num_groups
        """Per KV group, pages allocated since the pages to be evicted next were last inspected."""
        self._most_taken = self._num_taken.copy()
        """Per KV group, the largest value that `_num_taken` ever had."""
        self._inspected: dict[bytes, RadixNode] = {}
        """Short keys of pages that go next and that L2 has or is to get, each with the node with
        which it was inspected: while that one is not used, they still go next.
        """
        self._lost: OrderedDict[bytes, None] = OrderedDict()
        """Short keys of inspected pages that L2 has since lost in some group: an ordered set.

        They are looked at with the next rows, and not at once: two tiers that are both full would
        copy pages to and fro for ever.
        """

    def __len__(self) -> int:
        return sum(map(len, self._dirty))

    def offer_new(self, pages: Iterable[NewPage]) -> None:
        """Take pages just published in L1; the write policy says which of them are copied."""
        match self._settings.write_policy:
            case WritePolicy.WRITE_THROUGH:
                self.add(list(pages), self._groups)
            case WritePolicy.WRITE_BACK:
                # It was computed once more, and would be lost in the same way.
                lost = [page for page in pages if self._uses.is_lost(page[0])]
                self.add(lost, self._groups)

    def offer_window(
        self, group: int, keys: list[PageKey], page_ids: list[int], *, is_returning: bool
    ) -> None:
        """Offer pages of a WINDOW group that lie before a checkpoint; others are never copied.

        is_returning: of the request, see `count_use`.
        """
        windows = self._windows[group]
        assert windows is not None, "a FULL group has no windows"
        if not self._settings.has_host_memory:
            return
        pages = dict(zip(keys, page_ids, strict=True))
        windows.update(pages)
        match self._settings.write_policy:
            case WritePolicy.WRITE_THROUGH:
                wanted = keys
            case WritePolicy.WRITE_BACK:
                lost = set(filter(self._uses.is_lost, keys))
                wanted = [key for key in keys if key in lost]
                self._unclean[group].update({key: pages[key] for key in keys if key not in lost})
            case WritePolicy.WRITE_THROUGH_SELECTIVE:
                least = 0 if is_returning else self._settings.write_threshold
                wanted = [key for key in keys if self._uses.count(key) >= least]
        self._add_to(group, {key: pages[key] for key in wanted})

    def count_use(self, keys: bytes, page_ids: PageIds, *, is_returning: bool) -> bool:
        """One more request uses these pages: those that enough requests have used get a copy.

        So do all pages of one that is returning: that goes on where an earlier one has ended, with
        a page that enough requests have used. Returns whether it is.
        """
        wanted = []
        for page in pages_with_keys(split_keys(keys), page_ids):
            is_wanted = self._uses.add(page[0]) >= self._settings.write_threshold
            if is_wanted or is_returning:
                wanted.append(page)
            is_returning |= is_wanted and self._uses.is_end(page[0])
        self.add(wanted, self._groups)
        return is_returning

    def note_end(self, key: PageKey) -> None:
        """Note that a request has ended, whose last full page has this key."""
        if self._settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE:
            self._uses.add_end(key)

    def add_all(self, tree: RadixTree) -> None:
        """Copy all that is in L1 alone, heads first, whatever the policy."""
        for run in tree.unlocked():
            pages = list(pages_with_keys(split_keys(run.keys), run.page_ids))
            # There is no later time for those that would be too many.
            self.add(pages, self._groups, most=None)

    def clean_ahead(self, tree: RadixTree, *, num_free: tuple[int, ...]) -> None:
        """Back up what will be evicted next and L2 does not hold, before its page is needed."""
        self._most_taken = list(map(max, self._most_taken, self._num_taken))
        self._num_taken = [0] * len(self._num_taken)
        if not self._host.is_usable:
            return
        wanted = 0
        for group, free in enumerate(num_free):
            num_pages = self._settings.num_pages[group]
            num_kept = low_water(num_pages, self._pages_per_step, self._most_taken[group])
            num_lacking = num_kept - free
            if self._windows[group] is None:
                wanted = max(wanted, num_lacking)
            else:
                self._clean_windows(group, num_lacking)
        if wanted > 0:
            self._clean_leaves(tree, wanted)

    def note_taken(self, num_pages: Sequence[int]) -> None:
        """Note that so many pages of each KV group are taken, and perhaps soon as many again."""
        for group, num in enumerate(num_pages):
            self._num_taken[group] += num

    def _clean_windows(self, group: int, num_pages: int) -> None:
        """Back up the oldest windows of which L2 has no copy yet."""
        unclean = self._unclean[group]
        oldest = [unclean.popitem(last=False) for _ in range(min(len(unclean), num_pages))]
        self._add_to(group, dict(oldest))

    def _clean_leaves(self, tree: RadixTree, wanted: int) -> None:
        """Back up what L2 lacks of the next `wanted` pages to leave the tree."""
        for _ in range(min(len(self._lost), _MAX_INSPECTED_PAGES)):
            short, _ = self._lost.popitem(last=False)
            page = inspected_page(self._inspected[short], short)
            if page is not None:
                self._clean([page], self._groups)
            else:
                # It has been used since: it is inspected anew when it goes next once more.
                del self._inspected[short]

        # The tree knows how far it was inspected: a step looks only at what has come since, and
        # at a bounded number of pages.
        num_left = max(_MAX_INSPECTED_PAGES, 2 * self._pages_per_step)
        for nodes in tree.inspect_ahead(wanted):
            # Heads first: without its head L2 would have a chain's tail for nobody.
            for node in nodes:
                num_left -= node.num_pages
                self._clean_node(node)
            if num_left <= 0 or len(self) >= _MAX_DIRTY_PAGES:
                return

    def _clean_node(self, node: RadixNode) -> None:
        keys = split_keys(node.keys)
        self._inspected.update(dict.fromkeys([key[:MIRROR_KEY_BYTES] for key in keys], node))
        known = self._host.keys
        lacking = {key for group in self._groups for key in known.lacking(group, keys)}
        if lacking:
            pages = [page for page in pages_with_keys(keys, node.page_ids) if page[0] in lacking]
            # Of windows the last ones first: where few can be copied, those before them are of less
            # use, and all that precedes a chain's end is in vain without the one before its end.
            self._clean(pages[::-1], self._window_groups)
            self._clean(pages, self._full_groups)

    def hasten(self) -> None:
        """Let what waits be copied with the next plan, however few pages it is."""
        self._taken_s = -math.inf

    def wanted_of(self, keys: Sequence[PageKey]) -> list[tuple[int, PageKey]]:
        """What L2 is to get of these pages, each with its KV group: of windows, those it keeps."""
        wanted = []
        for group, windows in enumerate(self._windows):
            wanted += [(group, key) for key in keys if windows is None or key in windows]
        return wanted

    def is_worth_a_copy(self, now_s: float) -> bool:
        """Whether a copy is worth it while steps run: many pages wait, or one waits for long."""
        if len(self) >= _FEW_PAGES or now_s - self._taken_s >= _GATHER_S:
            return True
        pools = zip(self._dirty, self._settings.num_pages, strict=True)
        return any(dirty and len(dirty) >= num // _PAGES_PER_FEW for dirty, num in pools)

    def take(self, now_s: float) -> list[tuple[list[PageKey], list[int]]]:
        """Per KV group, keys and ids of the oldest pages for which there are granted host pages."""
        taken = [self._take_group(group) for group in self._groups]
        if any(keys for keys, _ in taken):
            self._taken_s = now_s
        return taken

    def _take_group(self, group: int) -> tuple[list[PageKey], list[int]]:
        keys: list[PageKey] = []
        page_ids: list[int] = []
        if not self._host.is_usable:
            return keys, page_ids

        dirty = self._dirty[group]
        most = pages_of_copy(self._settings.layout.host_page_bytes(group))
        limit = min(most, self._host.num_granted(group))
        while num_pages := min(len(dirty), limit - len(keys)):
            oldest = dict([dirty.popitem(last=False) for _ in range(num_pages)])
            lacking = self._host.keys.lacking(group, oldest)
            keys += lacking
            # As a rule L2 has got none of them meanwhile.
            is_all = len(lacking) == num_pages
            page_ids += oldest.values() if is_all else [oldest[key] for key in lacking]
        self._copying[group].update(keys)
        return keys, page_ids

    def finish(self, keys: tuple[bytes, ...]) -> None:
        """Note that the copies of these pages, given per KV group, are done."""
        for copying, done in zip(self._copying, keys, strict=True):
            copying.difference_update(split_keys(done))

    def count_eviction(self, victim: Victim) -> None:
        """Pages make way for others; those that L2 does not hold are lost, and never waited for."""
        if not victim.is_removed:
            # Windows alone: most of them nobody would have come back to.
            return
        dropped: set[PageKey] = set()
        if self._settings.has_host_memory:
            dropped = self._unclean_of(split_keys(victim.keys))
        if self._settings.write_policy is WritePolicy.WRITE_BACK:
            for key in dropped:
                self._uses.add_loss(key)
        self._counters.count_eviction(victim.num_pages, num_dropped=len(dropped))

    def _unclean_of(self, keys: list[PageKey]) -> set[PageKey]:
        """Which of these pages L2 lacks in some KV group in which it should have them.

        Those that are being copied are on their way: an evicted page is not filled before.
        """
        unclean: set[PageKey] = set()
        for group, windows in enumerate(self._windows):
            wanted = keys if windows is None else [key for key in keys if key in windows]
            lacking = self._host.keys.lacking(group, wanted)
            unclean.update(key for key in lacking if key not in self._copying[group])
        return unclean

    def forget(self, victim: Victim) -> None:
        """Forget evicted pages, in the KV groups that lose them."""
        has_state = len(self) or self._inspected or any(self._windows)
        if not has_state:
            return
        keys = split_keys(victim.keys)
        for group, page_ids in enumerate(victim.page_ids):
            if page_ids.all():
                held = keys
            else:
                pairs = zip(keys, page_ids.tolist(), strict=True)
                held = [key for key, page_id in pairs if page_id]
            _drop(self._dirty[group], held)
            _drop(self._windows[group] or {}, held)
            _drop(self._unclean[group], held)

        if victim.is_removed:
            shorts = [key[:MIRROR_KEY_BYTES] for key in keys]
            _drop(self._inspected, shorts)
            _drop(self._lost, shorts)

    def note_dropped(self, short_keys: Iterable[bytes]) -> None:
        """Note that L2 no longer holds these pages."""
        self._lost.update(dict.fromkeys(key for key in short_keys if key in self._inspected))

    def note_new_host(self) -> None:
        """Note that a new HostMemory has attached, which may hold nothing."""
        self._lost.update(dict.fromkeys(self._inspected))

    def note_lost_host(self) -> None:
        """Note that HostMemory is gone: there is nowhere to copy pages to."""
        self.give_up()

    def give_up(self) -> None:
        """Copy nothing of what waits for its copy."""
        for dirty in self._dirty:
            dirty.clear()

    def _clean(self, pages: list[NewPage], groups: Iterable[int]) -> None:
        if self._settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE:
            least = self._settings.write_threshold
            pages = [page for page in pages if self._uses.count(page[0]) >= least]
        self.add(pages, groups)

    def add(
        self, pages: Sequence[NewPage], groups: Iterable[int], most: int | None = _MAX_DIRTY_PAGES
    ) -> None:
        """Copy pages in those groups that hold them; in WINDOW groups only before checkpoints."""
        for group in groups:
            windows = self._windows[group]
            if windows is None:
                held = {key: page_ids[group] for key, page_ids in pages if page_ids[group]}
            else:
                # A page of a window may have made way for another one since its run was seen.
                held = {key: windows[key] for key, _ in pages if key in windows}
            self._add_to(group, held, most)

    def _add_to(
        self, group: int, pages: Mapping[PageKey, int], most: int | None = _MAX_DIRTY_PAGES
    ) -> None:
        """Copy pages of one group, key to page id, in this order, unless `most` wait already.

        Those that L2 has or is to get are passed over.
        """
        if not self._settings.has_host_memory:
            return
        dirty, copying = self._dirty[group], self._copying[group]
        new = self._host.keys.lacking(group, pages)
        # As a rule none of them waits or is copied yet, which is found out at once.
        if not (dirty.keys().isdisjoint(new) and copying.isdisjoint(new)):
            new = [key for key in new if key not in dirty and key not in copying]
        kept = new if most is None else new[: max(0, most - len(dirty))]
        dirty.update(pages if len(kept) == len(pages) else {key: pages[key] for key in kept})
        if len(kept) < len(new):
            self._counters.count(Count.BACKUP_QUEUE_FULL, len(new) - len(kept))


def _drop(pages: dict[_Key, Any], keys: Iterable[_Key]) -> None:
    """Remove those of these keys that are present."""
    if pages:
        for key in keys:
            pages.pop(key, None)


def pages_with_keys(keys: list[PageKey], page_ids: PageIds) -> Iterator[NewPage]:
    """The pages of a run, one by one: each key with its page id in every KV group."""
    return zip(keys, zip(*[ids.tolist() for ids in page_ids], strict=True), strict=True)
