"""L1 of one lane: the pages of its ranks' pools, and the radix tree that finds those cached."""

from raydix.errors import AccountingError
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment, take_back_hit
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree, Victim
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.scheduler.backups import BackupQueue
from raydix.runtime.scheduler.chain import Chain
from raydix.runtime.scheduler.settings import SchedulerSettings


class L1:
    """Owns: which GPU pages of a lane are free, taken or cached, and which leave it next."""

    def __init__(self, settings: SchedulerSettings, backups: BackupQueue) -> None:
        self._has_caching = settings.prefix_caching
        self._backups = backups
        self.pool = PagePool(settings.num_pages)
        self.tree = RadixTree(page_size=settings.page_size, eviction=settings.eviction)
        self.last_step = 0
        """The last plan that was sent: a page released now may be in use until it has ended."""
        # What is released before the first step need not wait for one.
        self.pool.settle(self.last_step)

    @property
    def num_loadable_pages(self) -> int:
        """Pages that are free, will be, or can be evicted."""
        return self.pool.num_free + self.pool.num_quarantined + self.tree.num_evictable_pages

    def match(self, chain: Chain) -> Match:
        """The longest prefix of a chain that is cached; nothing is with caching switched off."""
        return self.tree.match(chain.identity, chain.packed if self._has_caching else b"")

    def withdraw(self, lock: Lock) -> None:
        """Give back a lock that came to nothing: it is no hit."""
        take_back_hit(lock.node)
        self.tree.unlock(lock)

    def allocate(self, num_pages: int) -> Int32Array | None:
        """Take free pages, evicting as needed; None if they are not free yet."""
        if num_pages > self.pool.num_free:
            self.make_room(num_pages - self.pool.num_free)
        return self.pool.allocate(num_pages)

    def release(self, page_ids: Int32Array) -> None:
        """Give pages back that the tree does not hold."""
        if len(page_ids):
            self.pool.release(page_ids, after_step=self.last_step)

    def make_room(self, num_pages: int) -> None:
        """Evict so that `num_pages` more than now are free, at once or when their quarantine ends."""
        for victim in self.tree.evict(max(0, num_pages - self.pool.num_quarantined)):
            self._backups.count_eviction(victim)
            self._release_victim(victim)

    def flush(self) -> None:
        """Evict everything that no request holds."""
        for victim in self.tree.flush():
            self._release_victim(victim)

    def insert(
        self,
        chain: Chain,
        lock: Lock,
        page_ids: Int32Array,
        *,
        segment: Segment,
        priority: int,
        now_s: float,
    ) -> Insertion:
        """Enter the pages of a chain that follow `lock` into the tree, which keeps its own where
        it has some already.
        """
        start, stop = lock.num_pages, lock.num_pages + len(page_ids)
        return self.tree.insert(
            lock,
            chain.packed_pages(start, stop),
            (page_ids,),
            chain.keys(stop, start),
            segment=segment,
            priority=priority,
            now_s=now_s,
        )

    def start_step(self) -> int:
        """A plan is sent; returns its number."""
        self.last_step += 1
        return self.last_step

    def check(self, *, num_private: int, num_locks: int, figures: str) -> None:
        """Raise AccountingError unless tree and pool agree with those who hold pages and locks."""
        self.pool.check()
        self.tree.check()
        if self.pool.num_used != self.tree.num_cached_pages + num_private:
            raise AccountingError(f"pages in use are neither cached nor held by anybody: {figures}")
        if self.tree.num_locks != num_locks:
            raise AccountingError(f"locks do not belong to requests and promotions: {figures}")

    def _release_victim(self, victim: Victim) -> None:
        self._backups.forget(victim)
        self.pool.release(victim.page_ids[0], after_step=self.last_step)
