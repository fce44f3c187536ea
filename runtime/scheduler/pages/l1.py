"""L1 of one lane: the pages of its pools, and the radix tree that finds those cached."""

from collections.abc import Sequence

from raydix.errors import AccountingError
from raydix.runtime.cache.page_pools import PageIds, PagePools, num_pages_of
from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.cache.radix_node import Segment, Victim, join_page_ids, take_back_hit
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.pages.backups import BackupQueue
from raydix.runtime.scheduler.pages.l1_news import L1News
from raydix.runtime.scheduler.pages.page_needs import PageCounts, add_pages
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.settings import SchedulerSettings

_FLUSHED_NODES = 256
"""The nodes or pages that a flush drops with one event: some 2 ms of work."""
NO_STEP = 0
"""The step number that stands for no step: steps are counted from 1."""


class L1:
    """Owns: which GPU pages of a lane are free, taken or cached, and which leave it next."""

    def __init__(
        self, settings: SchedulerSettings, backups: BackupQueue, news: PageNews, lane: int
    ) -> None:
        self._has_caching = settings.prefix_caching
        self._backups = backups
        self.pools = PagePools(settings.num_pages)
        self.tree = RadixTree(
            page_size=settings.page_size,
            reaches=settings.reaches,
            eviction=settings.eviction,
        )
        self.news = L1News(settings, news, lane, self.tree.forest)
        self.last_step = NO_STEP
        """The last plan that was sent: a page released now may be in use until it has ended."""
        # What is released before the first step need not wait for one.
        self.pools.settle(self.last_step)

    def can_free(self, num_pages: PageCounts) -> bool:
        """Whether so many pages are free, will be, or can be evicted."""
        return all(num <= left for num, left in zip(num_pages, self.num_freeable(), strict=True))

    def num_freeable(self) -> PageCounts:
        """Pages that are free, will be, or can be evicted."""
        pairs = enumerate(self._num_available())
        return tuple([num + self.tree.num_evictable_pages(group) for group, num in pairs])

    def num_lacking(self, num_pages: PageCounts) -> PageCounts:
        """How many of so many pages are not free yet and will not be without an eviction."""
        pairs = zip(num_pages, self._num_available(), strict=True)
        return tuple([max(0, num - available) for num, available in pairs])

    def num_free(self) -> PageCounts:
        """Pages that can be taken now."""
        return self.pools.count(lambda pool: pool.num_free)

    def figures(self) -> dict[str, int]:
        """Pages of each KV group by state; locked ones are cached, cached ones are used."""
        figures: dict[str, int] = {}
        for group in range(self.pools.num_groups):
            pool = self.pools.group(group)
            figures[f"l1_total_pages_{group}"] = pool.num_pages
            figures[f"l1_used_pages_{group}"] = pool.num_used
            figures[f"l1_cached_pages_{group}"] = self.tree.num_cached_pages(group)
            figures[f"l1_locked_pages_{group}"] = self.tree.num_locked_pages(group)
        return figures

    def match(self, chain: Chain) -> Match:
        """The longest prefix of a chain that is cached; nothing is with caching switched off."""
        return self.tree.match(chain.identity, chain.packed if self._has_caching else b"")

    def lock(self, match: Match, num_pages: int, *, now_s: float) -> Lock:
        """Keep the first pages of a match, which somebody is about to use."""
        return self.tree.lock(match, num_pages, now_s=now_s)

    def unlock(self, lock: Lock, *, last_step: int) -> None:
        """Give a lock back. `last_step`: the last step that may name its pages."""
        self.tree.unlock(lock, last_step=last_step)

    def heal(self, chain: Chain, lock: Lock, start: int, page_ids: PageIds) -> PageIds:
        """Give the tree pages of windows that it lacks before the end of `lock`, from `start` on.

        Returns those that it has now.
        """
        kept = self.tree.heal(lock, start, page_ids)
        self.news.inserted(chain, start, page_ids, kept)
        return kept

    def withdraw(self, lock: Lock) -> None:
        """Give back a lock that came to nothing: it is no hit, and no step was sent for it."""
        take_back_hit(lock.node)
        self.tree.unlock(lock, last_step=NO_STEP)

    def allocate(self, num_pages: PageCounts) -> PageIds | None:
        """Take free pages of every KV group, evicting as needed; None if they are not free yet."""
        self._backups.note_taken(num_pages)
        taken = self.pools.allocate(num_pages)
        if taken is None:
            self.make_room(num_pages)
            taken = self.pools.allocate(num_pages)
        return taken

    def release(self, page_ids: PageIds, *, last_step: int | None = None) -> None:
        """Give pages back that the tree does not hold, or no more.

        `last_step`: the last that may name them; None: any that was sent.
        """
        after_step = self.last_step if last_step is None else last_step
        self.pools.release(page_ids, after_step=after_step)

    def make_room(self, num_pages: PageCounts) -> None:
        """Evict so that so many pages are free, at once or when their quarantine ends."""
        # What is in quarantine now may be others' by then, and yet others' pages be there.
        free = self.num_free()
        at_once = [max(0, num - num_free) for num, num_free in zip(num_pages, free, strict=True)]
        self.evict(at_once, last_step=self.pools.acknowledged_step)

        if not self.pools.has_free(num_pages):
            self.evict(self.num_lacking(num_pages))

    def evict(self, num_pages: Sequence[int], *, last_step: int | None = None) -> None:
        """Evict unlocked pages until so many are out of each group, as `RadixTree.evict` does."""
        victims = self.tree.evict(num_pages, last_step=last_step)
        for victim in victims:
            self._backups.count_eviction(victim)
        self._release_victims(victims)

    def drop_inner(self, lock: Lock, group: int, page: int) -> None:
        """Give up a page of a WINDOW group behind `lock`, as `RadixTree.drop_inner` does."""
        victim = self.tree.drop_inner(lock, group, page)
        self._release_victims([] if victim is None else [victim])

    def flush_some(self, walk: FlushWalk) -> int:
        """Take a flush a few ms further; returns how many pages it dropped, of all KV groups."""
        num_before = sum(map(self.tree.num_cached_pages, range(self.pools.num_groups)))
        self._release_victims(self.tree.flush_some(walk, _FLUSHED_NODES))
        num_left = sum(map(self.tree.num_cached_pages, range(self.pools.num_groups)))
        return num_before - num_left

    def insert(
        self,
        chain: Chain,
        lock: Lock,
        page_ids: PageIds,
        *,
        segment: Segment,
        priority: int,
        now_s: float,
    ) -> Insertion:
        """Enter pages of a chain that follow `lock`; where the tree has a page it keeps its own."""
        start, stop = lock.num_pages, lock.num_pages + num_pages_of(page_ids)

        insertion = self.tree.insert(
            lock,
            chain.packed_pages(start, stop),
            page_ids,
            chain.keys(stop, start),
            segment=segment,
            priority=priority,
            now_s=now_s,
        )
        self.news.inserted(chain, start, page_ids, insertion.page_ids)
        return insertion

    def start_steps(self, num_steps: int) -> int:
        """Count the steps of a plan that is sent; returns the number of the first."""
        first_step = self.last_step + 1
        self.last_step += num_steps
        return first_step

    def check(self, *, num_private: PageCounts, num_locks: int, figures: str) -> None:
        """Raise AccountingError unless tree and pools agree with those who hold pages and locks."""
        self.pools.check()
        self.tree.check()
        cached = tuple(map(self.tree.num_cached_pages, range(self.pools.num_groups)))
        if self.pools.count(lambda pool: pool.num_used) != add_pages(cached, num_private):
            raise AccountingError(f"pages in use are neither cached nor held by anybody: {figures}")
        if self.tree.num_locks != num_locks:
            raise AccountingError(f"locks do not belong to requests and promotions: {figures}")

    def _num_available(self) -> PageCounts:
        return self.pools.count(lambda pool: pool.num_free + pool.num_quarantined)

    def _release_victims(self, victims: Sequence[Victim]) -> None:
        if not victims:
            return
        for victim in victims:
            self._backups.forget(victim)
        self.news.removed(victims)
        # All at once: a release costs 10 us, and a flush may be of 100,000 short runs.
        num_pages = sum(victim.num_pages for victim in victims)
        page_ids = join_page_ids([victim.page_ids for victim in victims], num_pages)
        # Among the first to go hardly one was used of late.
        self.release(page_ids, last_step=max([victim.last_step for victim in victims]))


def duplicates(own: PageIds, kept: PageIds) -> PageIds:
    """The pages of a run for which the tree has others."""
    return tuple([ids[ids != in_tree] for ids, in_tree in zip(own, kept, strict=True)])
