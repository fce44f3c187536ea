"""The index of L2: which host page holds what, and which page goes next."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from raydix.ids import SEVERAL_USERS, HostPageId, PageKey, UserId
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.coming_pages import Coming, ComingPages
from raydix.runtime.cache.host.group_check import check_group
from raydix.runtime.cache.host.lru_lists import Items
from raydix.runtime.cache.host.page_names import PageNames, there_of
from raydix.runtime.cache.host.page_reuse import ChainUse, PageReuse, kind_of_used
from raydix.runtime.cache.host.page_run import HintedPages
from raydix.runtime.cache.host.page_runs import PageRuns
from raydix.runtime.cache.host.pages import HostPages, HostPageState
from raydix.runtime.cache.host.unwritten import UnwrittenPages
from raydix.runtime.cache.standing import Idle, InUse, Standing
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import Int32Array


@dataclass(slots=True)
class _GroupPages:
    """Pages of the slabs that one KV group owns now."""

    free: list[HostPageId] = field(default_factory=list)
    """Every FREE page, handed out from the end, and some that went away with their slab."""
    ready: PageNames = field(default_factory=PageNames)
    changes: dict[PageKey, bool] = field(default_factory=dict)
    """Keys that became READY (True) or were dropped (False) since the last `take_changes`."""


class HostIndex:
    """Owns: `HostPages`, the names of READY pages, and the order in which they go.

    No operation costs more than the pages it touches, or those of a slab that it takes.
    """

    def __init__(
        self,
        geometry: ArenaGeometry,
        generations: Int32Array | None = None,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        """Start with every page FREE. `generations`: of the arena, if it was in use before."""
        self._pages = HostPages(geometry, generations)
        self.slabs_bytes = geometry.num_slabs * geometry.slab_bytes
        self.page_bytes = geometry.page_bytes
        """The bytes of a page of each KV group."""
        self._groups = [_GroupPages() for _ in range(geometry.num_groups)]
        num_pages = geometry.num_host_pages
        self._reuse = PageReuse() if eviction is EvictionPolicy.REUSE else None
        self._evictable = PageRuns(
            num_pages, geometry.num_groups, EVICTION_POLICIES[eviction], self._reuse
        )
        """The READY pages without readers."""
        self._coming = ComingPages()
        self._now_s = 0.0
        self.unwritten = UnwrittenPages(geometry.num_host_pages)
        self.num_slabs_taken = 0
        """The number of times that a slab went from one KV group to another."""

    @property
    def num_groups(self) -> int:
        """The number of KV groups."""
        return len(self._groups)

    @property
    def num_pages(self) -> int:
        """The number of page ids of the arena."""
        return self._pages.num_pages

    def find(self, group: int, key: PageKey) -> HostPageId | None:
        """The READY page that holds `key`."""
        return self._groups[group].ready.find(key)

    def find_all(self, group: int, keys: Sequence[PageKey]) -> list[HostPageId | None]:
        """The READY page that holds each of these keys; None where there is none."""
        return self._groups[group].ready.find_all(keys)

    def name(self, page_id: HostPageId) -> tuple[int, PageKey] | None:
        """The KV group and key of a READY page; None for other pages."""
        key = self._pages.key(page_id)
        return None if key is None else (self._pages.group_of(page_id), key)

    def state(self, page_id: HostPageId) -> HostPageState:
        """The state of a page."""
        return self._pages.state(page_id)

    def are_all(self, page_ids: Sequence[HostPageId], state: HostPageState) -> bool:
        """Whether each of these pages is in this state."""
        return self._pages.are_all(page_ids, state)

    def generation(self, page_id: HostPageId) -> int:
        """The generation of a page, which changes whenever the page is handed out."""
        return self._pages.generation(page_id)

    def generations_of(self, page_ids: Sequence[HostPageId]) -> Int32Array:
        """The generation of each of these pages."""
        return self._pages.generations_of(page_ids)

    def generations(self) -> "array[int]":
        """A copy of all generations, by page id."""
        return self._pages.generations()

    def is_filling(self, page_id: int, generation: int) -> bool:
        """Whether the page exists, is FILLING, and has not changed hands since `generation`."""
        return self._pages.is_filling(page_id, generation)

    def ready_pages(self, start: int, max_pages: int) -> list[HostPageId]:
        """The first READY pages with ids from `start` on; fewer than `max_pages` if no more are.

        A walk over the index takes them piece by piece. A page that is READY from its first to its
        last piece is met exactly once, whatever happens in between, for a page's id never changes.
        """
        return self._pages.ready_pages(start, max_pages)

    def newest_first(self) -> Iterator[HostPageId]:
        """The pages that are READY now: those with readers, then each group's others, the most
        recently used first, so that chains come from their head on.

        It may be gone through while pages change: what has been dropped meanwhile comes, too.
        """
        return map(HostPageId, chain(self._pages.read_pages(), self._evictable.newest_first()))

    @property
    def num_ready(self) -> int:
        """The number of READY pages of all KV groups."""
        return sum(len(pages.ready) for pages in self._groups)

    def num_readers_of(self, page_id: HostPageId) -> int:
        """The number of pins of a page."""
        return self._pages.num_readers(page_id)

    @property
    def num_readers(self) -> int:
        """The number of pins of all pages; O(pages)."""
        return self._pages.total_readers

    @property
    def num_unused_slabs(self) -> int:
        """The number of slabs that no KV group has needed yet."""
        return self._pages.num_unused_slabs

    def count_by_state(self, group: int) -> dict[HostPageState, int]:
        """The number of pages of the group's slabs in each state."""
        return {state: self._pages.count(group, state) for state in HostPageState}

    def allocate(self, group: int) -> HostPageId | None:
        """Hand out a page as FILLING; None if all are in use.

        Where no page is free, the least recently used one of the group goes, or another group's
        slab whose pages are all older than that.
        """
        return next(iter(self.allocate_some(group, 1)), None)

    def allocate_some(self, group: int, num_pages: int) -> list[HostPageId]:
        """Call `allocate` so many times; fewer pages if all are in use."""
        pages: list[HostPageId] = []
        while len(pages) < num_pages:
            page_id = self._take_free(group)
            if page_id is None:
                if not self._take_unused_slab(group):
                    self._make_room(group, num_pages - len(pages))
                page_id = self._take_free(group)
            if page_id is None:
                break
            self._pages.hand_out(page_id)
            pages.append(page_id)
        return pages

    def _take_free(self, group: int) -> HostPageId | None:
        free = self._groups[group].free
        while free:
            page_id = free.pop()
            # Its slab may have gone to another group since. Such pages stay in the list, as nothing
            # can be taken out of its middle; unlike a dict it grows to a million without a pause.
            if self._pages.is_free(page_id, group):
                return page_id
        return None

    def publish(self, page_id: HostPageId, key: PageKey) -> bool:
        """Make a FILLING page READY and the most recently used one.

        False: another page is READY under this name, and this one is FREE now.
        """
        group = self._pages.group_of(page_id)
        pages = self._groups[group]
        if pages.ready.find(key) is not None:
            self.free(page_id)
            return False

        self._pages.fill(page_id, key)
        pages.ready.add(key, page_id)
        self._evictable.append(group, page_id, self._now_s, self._coming.find(key))
        self._pages.use(page_id)
        pages.changes[key] = True
        return True

    def free(self, page_id: HostPageId) -> None:
        """Take a FILLING or QUARANTINED page back unpublished."""
        self._pages.give_back(page_id)
        self._groups[self._pages.group_of(page_id)].free.append(page_id)

    def quarantine(self, page_id: HostPageId) -> None:
        """Keep a FILLING page out of use until `free`."""
        self._pages.quarantine(page_id)

    def advance(self, now_s: float) -> None:
        """Note that it is so late: what is used from now on is used at this time."""
        self._now_s = now_s

    def touch_chain(
        self, group: int, keys: Sequence[PageKey], user: UserId = SEVERAL_USERS
    ) -> None:
        """Mark the READY pages of a chain as in use by a user: last the first, which goes last.

        By several users: as used just now.
        """
        found = self.find_all(group, keys)
        ready = there_of(found)
        standing: Standing = Idle(self._now_s)
        goes_on_s, kind = -math.inf, None
        if user != SEVERAL_USERS:
            lacking = [key for key, page_id in zip(keys, found, strict=True) if page_id is None]
            kind, coming = self._learn(group, ready, lacking, user)
            self._coming.note(lacking, coming)
            standing = InUse(self._now_s)
            goes_on_s = self._now_s if lacking else goes_on_s
        unread = self._evictable.listed(ready)
        self._evictable.use(
            group, unread, user, standing, self._now_s, goes_on_s=goes_on_s, kind=kind
        )
        self._pages.use_all(unread[::-1])

    def _learn(
        self, group: int, ready: Items, lacking: Sequence[PageKey], user: UserId
    ) -> tuple[int | None, Coming]:
        """Note that a request uses a chain: what kind that makes its pages, and what is to come.

        None unless the policy is to learn.
        """
        if self._reuse is None:
            return None, Coming(user, self._now_s)
        # Whatever the number of KV groups, it is one request.
        if group == 0 and self._reuse.begin_request(self._now_s):
            self._evictable.note_review()
        parts = self._evictable.parts_of(ready)
        of_read = self._evictable.last_turn_of_read(ready)
        chain = ChainUse(
            parts=parts,
            last_turn=max([of_read, *(run.turn for run, _ in parts)]),
            lacking=lacking[0] if lacking else None,
            num_pages=len(ready) + len(lacking),
        )
        new_kind, turn = self._reuse.use(chain)
        kind = kind_of_used(new_kind)
        self._evictable.use_read(ready, kind)
        return kind, Coming(user, self._now_s, new_kind, turn)

    def begin_use(self, user: UserId) -> None:
        """Note that a user has a request: if it had ended, it goes on."""
        self._evictable.begin_use(user, self._now_s)

    def end_use(self, group: int, keys: Sequence[PageKey], user: UserId) -> None:
        """Note that a user has ended its use of these pages, the last of a chain."""
        ready = there_of(self.find_all(group, keys))
        # Pages that somebody else has used since stay where the rest of that chain is.
        pages = self._evictable.last_used_by(user, ready)
        self._evictable.use(group, pages, user, Idle(self._now_s), self._now_s)
        self._pages.use_all(pages[::-1])

    def rest(self, user: UserId) -> None:
        """Note that a user reads nothing for now: what it has used counts as used now."""
        self._coming.forget(user)
        self._evictable.rest(user, self._now_s)

    def kept_users(self) -> set[UserId]:
        """The users of what is kept by a hint; O(runs)."""
        return self._evictable.kept_users(self._now_s)

    def retain(self, user: UserId, standing: Standing) -> list[HintedPages]:
        """Change the standing of what a user alone has used; returns what this concerns."""
        return self._evictable.retain(user, standing, self._now_s)

    def hinted(self, page_ids: Sequence[HostPageId]) -> list[HintedPages]:
        """The pages among these, in any order, of which a hint says something."""
        return self._evictable.hinted(np.array(page_ids, dtype=np.int64))

    def pin(self, page_id: HostPageId) -> None:
        """Add a reader to a READY page."""
        if self._pages.add_reader(page_id):
            self._evictable.set_aside(self._pages.group_of(page_id), page_id)

    def pin_all(self, group: int, page_ids: Sequence[HostPageId]) -> None:
        """Add a reader to each of these READY pages of a group, none of which is named twice."""
        pages = np.array(page_ids, dtype=np.int64)
        self._evictable.set_all_aside(group, self._pages.add_readers(pages))

    def unpin(self, page_ids: Iterable[HostPageId]) -> None:
        """Take a reader off each page, given in prefix order; the last one counts as used first."""
        for page_id in reversed(list(page_ids)):
            if self._pages.remove_reader(page_id):
                self._evictable.put_back(self._pages.group_of(page_id), page_id, self._now_s)
                self._pages.use(page_id)

    def drop_unread(self, page_id: HostPageId) -> bool:
        """Drop a READY page unless somebody reads it. Returns whether it is gone."""
        if is_unread := page_id in self._evictable:
            self._drop([page_id])
        return is_unread

    def take_changes(self, group: int) -> tuple[list[PageKey], list[PageKey]]:
        """Keys that became READY, and keys that were dropped, since the last call; each once."""
        changes, self._groups[group].changes = self._groups[group].changes, {}
        ready = [key for key, is_ready in changes.items() if is_ready]
        return ready, [key for key, is_ready in changes.items() if not is_ready]

    def _drop(self, page_ids: Sequence[HostPageId]) -> None:
        group = self._pages.group_of(page_ids[0])
        pages = self._groups[group]
        self._evictable.remove_all(group, np.array(page_ids, dtype=np.int64))
        for page_id in page_ids:
            key = self._pages.drop(page_id)
            self.unwritten.forget(page_id)
            pages.ready.remove(key)
            pages.changes[key] = False
        pages.free.extend(reversed(page_ids))

    def _take_unused_slab(self, group: int) -> bool:
        page_ids = self._pages.give_unused_slab(group)
        self._groups[group].free.extend(reversed(page_ids))
        return bool(page_ids)

    def _make_room(self, group: int, num_pages: int) -> None:
        """Make room for a page at least, and for no more than so many where a group is alone."""
        # A slab of another group is taken only if all its pages are older than the oldest page of
        # this group: they would go next anyway if all groups shared one list. So two groups do not
        # take a slab to and fro: once filled, its pages are the newest of this group.
        most = num_pages if self.num_groups == 1 else 1
        oldest = self._evictable.oldest(group, self._now_s, most)
        slab = self._pages.oldest_slab_of_others(group)
        if oldest and (
            slab is None
            or self._evictable.goes_before_all(oldest[0])
            or not self._pages.is_slab_older(slab, HostPageId(oldest[0]))
        ):
            self._make_way(oldest)
        elif slab is not None:
            self._take_slab(slab, group)

    def _make_way(self, pages: Sequence[int]) -> None:
        """Drop READY pages of one run that nobody reads, as there is no room for them."""
        page_ids = list(map(HostPageId, pages))
        if self._reuse is not None:
            keys = list(filter(None, map(self._pages.key, page_ids)))
            self._reuse.made_way(self._evictable.run_of(page_ids[0]), keys)
        self._drop(page_ids)

    def _take_slab(self, slab: int, group: int) -> None:
        for page_id in self._pages.slab_pages(slab):
            if self.state(page_id) is HostPageState.READY:
                self._make_way([page_id])
        self._groups[group].free.extend(reversed(self._pages.move_slab(slab, group)))
        self.num_slabs_taken += 1

    def check(self) -> None:
        """Raise AccountingError unless pages, names and lists agree; O(pages)."""
        for part in (self._pages, self._evictable, self._coming):
            part.check()
        if self._reuse is not None:
            self._reuse.check()
        for group, pages in enumerate(self._groups):
            check_group(group, pages.free, pages.ready, self._pages, self._evictable)
