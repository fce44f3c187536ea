"""The state of every host page of an arena, in columns, with counts that are kept up to date."""

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import add

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.lru_lists import Items, view_of
from raydix.runtime.cache.host.slabs import HostSlabs
from raydix.runtime.messages.arrays import Int32Array, int32_array

_MAX_GENERATION = 2**31 - 1


class HostPageState(IntEnum):
    """What a host page is doing."""

    FREE = 0
    FILLING = 1
    """One holder writes the page."""
    READY = 2
    """The page holds what its key names, and readers may pin it."""
    QUARANTINED = 3
    """A process that may still write the page has not ended yet."""


class HostPages:
    """Owns: the facts about every host page, how many pages are in which state, and `HostSlabs`.

    There may be millions of pages, so each fact is a column: an object per page would cost hundreds
    of bytes, and a pause whenever Python looks for garbage.
    """

    def __init__(self, geometry: ArenaGeometry, generations: Int32Array | None) -> None:
        """Start with every page FREE, and no slab given to a group."""
        num_pages = geometry.num_host_pages
        self._states = bytearray(num_pages)
        self._num_readers = array("i", bytes(4 * num_pages))
        self._keys: list[PageKey | None] = [None] * num_pages
        self._generations = array("i", bytes(4 * num_pages))
        if generations is not None:
            self._generations = array("i", generations.tolist())

        self._all_states = view_of(self._states, np.uint8)
        self._all_num_readers = view_of(self._num_readers, np.intc)
        self._all_generations = view_of(self._generations, np.intc)

        self._slabs = HostSlabs(geometry)
        self._is_shared = geometry.num_groups > 1
        self._clock = 0
        """The number of page uses so far, of all KV groups: the clock for `_used_at`."""
        self._used_at = array("q", bytes(8 * num_pages if self._is_shared else 0))
        """When each page was last used, on `_clock`; empty unless several groups share the slabs.
        """
        self._counts = [[0] * len(HostPageState) for _ in range(geometry.num_groups)]

    @property
    def num_pages(self) -> int:
        """The number of page ids of the arena."""
        return len(self._states)

    def state(self, page_id: HostPageId) -> HostPageState:
        """The state of a page."""
        return HostPageState(self._states[page_id])

    def generation(self, page_id: HostPageId) -> int:
        """How often the page was handed out: 1 to 2**31 - 1, then 1 again; 0 before that."""
        return self._generations[page_id]

    def generations_of(self, page_ids: Sequence[HostPageId]) -> Int32Array:
        """The generation of each of these pages."""
        return int32_array(self._all_generations[np.array(page_ids, dtype=np.int64)])

    def generations(self) -> "array[int]":
        """A copy of all generations, by page id."""
        return self._generations[:]

    def key(self, page_id: HostPageId) -> PageKey | None:
        """The key of what a READY page holds; None for other pages."""
        return self._keys[page_id]

    def num_readers(self, page_id: HostPageId) -> int:
        """The number of readers of a page."""
        return self._num_readers[page_id]

    def is_filling(self, page_id: int, generation: int) -> bool:
        """Whether the page exists, is FILLING, and has not changed hands since `generation`."""
        if not 0 <= page_id < len(self._states):
            return False
        return (
            self._states[page_id] == HostPageState.FILLING
            and self._generations[page_id] == generation
        )

    def is_free(self, page_id: HostPageId, group: int) -> bool:
        """Whether the page is FREE, in a slab of this group."""
        is_free = self._states[page_id] == HostPageState.FREE
        return is_free and self._slabs.group_of(page_id) == group

    def ready_pages(self, start: int, max_pages: int) -> list[HostPageId]:
        """The first READY pages with ids from `start` on, `max_pages` if there are so many."""
        pages: list[HostPageId] = []
        while len(pages) < max_pages:
            # Finding one byte passes over a million other pages in some tens of microseconds.
            start = self._states.find(HostPageState.READY, start) + 1
            if not start:
                break
            pages.append(HostPageId(start - 1))
        return pages

    def read_pages(self) -> list[HostPageId]:
        """The pages that have readers."""
        # This passes over a million pages in a ms.
        return list(map(HostPageId, np.flatnonzero(self._all_num_readers).tolist()))

    def count(self, group: int, state: HostPageState) -> int:
        """The number of pages of the group's slabs in this state."""
        return self._counts[group][state]

    @property
    def total_readers(self) -> int:
        """The number of readers of all pages; O(pages)."""
        return sum(self._num_readers)

    @property
    def num_unused_slabs(self) -> int:
        """The number of slabs that no KV group has needed yet."""
        return self._slabs.num_unused

    def hand_out(self, page_id: HostPageId) -> None:
        """Move a page from FREE to FILLING, under a new generation."""
        self._change(page_id, HostPageState.FREE, HostPageState.FILLING)
        self._slabs.hold(page_id)
        # 0 stays the generation of pages that were never handed out, so it is nobody's by chance.
        self._generations[page_id] = self._generations[page_id] % _MAX_GENERATION + 1

    def fill(self, page_id: HostPageId, key: PageKey) -> None:
        """Move a page from FILLING to READY."""
        self._change(page_id, HostPageState.FILLING, HostPageState.READY)
        self._keys[page_id] = key
        self._slabs.add_ready(page_id)
        self._slabs.unhold(page_id, self._clock)

    def quarantine(self, page_id: HostPageId) -> None:
        """Move a page from FILLING to QUARANTINED."""
        self._change(page_id, HostPageState.FILLING, HostPageState.QUARANTINED)

    def give_back(self, page_id: HostPageId) -> None:
        """Move a page from FILLING or QUARANTINED to FREE."""
        state = self.state(page_id)
        if state not in (HostPageState.FILLING, HostPageState.QUARANTINED):
            raise AccountingError(f"host page {page_id} is freed while {state.name}")
        self._change(page_id, state, HostPageState.FREE)
        self._slabs.unhold(page_id, self._clock)

    def drop(self, page_id: HostPageId) -> PageKey:
        """Move a page from READY, without readers, to FREE. Returns what it held."""
        self._change(page_id, HostPageState.READY, HostPageState.FREE)
        key = self._keys[page_id]
        if key is None or self._num_readers[page_id]:
            raise AccountingError(
                f"host page {page_id} is dropped with {self._num_readers[page_id]} readers"
            )
        self._keys[page_id] = None
        self._slabs.remove_ready(page_id)
        return key

    def use(self, page_id: HostPageId) -> None:
        """Make a READY page without readers the most recently used of all KV groups."""
        # With one group nobody asks how old a page of another one is.
        if self._is_shared:
            self._clock += 1
            self._used_at[page_id] = self._clock
            self._slabs.use(page_id, self._clock)

    def use_all(self, page_ids: Items) -> None:
        """Call `use` for each page, in their order."""
        if self._is_shared:
            for page_id in page_ids.tolist():
                self.use(page_id)

    def add_reader(self, page_id: HostPageId) -> bool:
        """Add a reader to a READY page. Returns whether it is the first."""
        if self._states[page_id] != HostPageState.READY:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name}; expected READY"
            )
        self._num_readers[page_id] += 1
        if self._num_readers[page_id] > 1:
            return False
        self._slabs.hold(page_id)
        return True

    def add_readers(self, page_ids: Items) -> Items:
        """Add a reader to each READY page. Returns those that had none before, in order."""
        is_ready = self._all_states[page_ids] == HostPageState.READY
        if not is_ready.all():
            self.add_reader(HostPageId(int(page_ids[is_ready.argmin()])))
        unread = page_ids[self._all_num_readers[page_ids] == 0]
        self._all_num_readers[page_ids] += 1
        self._slabs.hold_all(unread)
        return unread

    def remove_reader(self, page_id: HostPageId) -> bool:
        """Remove a reader from a page. Returns whether it was the last one."""
        num_readers = self._num_readers[page_id]
        if num_readers == 0:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name} with no readers"
            )
        self._num_readers[page_id] = num_readers - 1
        if num_readers > 1:
            return False
        self._slabs.unhold(page_id, self._clock)
        return True

    def _change(self, page_id: HostPageId, old: HostPageState, new: HostPageState) -> None:
        if self._states[page_id] != old:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name}; expected {old.name}"
            )
        self._states[page_id] = new
        counts = self._counts[self._slabs.group_of(page_id)]
        counts[old] -= 1
        counts[new] += 1

    def group_of(self, page_id: HostPageId) -> int:
        """The group whose slab the page is in."""
        return self._slabs.group_of(page_id)

    def give_unused_slab(self, group: int) -> list[HostPageId]:
        """Give an unused slab to a group. Returns its pages; none if groups have all slabs."""
        slab = self._slabs.give_unused(group)
        return [] if slab is None else self._add_free(slab, group)

    def oldest_slab_of_others(self, group: int) -> int | None:
        """The least recently used slab of another group that holds no page which must stay."""
        return self._slabs.oldest_of_others(group)

    def is_slab_older(self, slab: int, page_id: HostPageId) -> bool:
        """Whether every READY page of a slab was used before this one."""
        return self._slabs.used_at(slab) < self._used_at[page_id]

    def slab_pages(self, slab: int) -> list[HostPageId]:
        """The pages that the group of a slab has in it."""
        return self._slabs.page_ids(slab)

    def move_slab(self, slab: int, group: int) -> list[HostPageId]:
        """Give a slab, all of whose pages are FREE, to a group. Returns the pages that it gets."""
        pages = self._slabs.page_ids(slab)
        self._counts[self._slabs.group_of(pages[0])][HostPageState.FREE] -= len(pages)
        self._slabs.move(slab, group)
        return self._add_free(slab, group)

    def _add_free(self, slab: int, group: int) -> list[HostPageId]:
        pages = self._slabs.page_ids(slab)
        self._counts[group][HostPageState.FREE] += len(pages)
        return pages

    def are_all(self, page_ids: Sequence[HostPageId] | Items, state: HostPageState) -> bool:
        """Whether each of these pages is in this state."""
        return bool((self._all_states[np.array(page_ids, dtype=np.int64)] == state).all())

    def num_readers_of(self, page_ids: Items) -> Int32Array:
        """The number of readers of each of these pages."""
        return self._all_num_readers[page_ids]

    def are_of(self, page_ids: Items, group: int) -> NDArray[np.bool_]:
        """Whether each of these pages is in a slab of this group."""
        return self._slabs.are_of(page_ids, group)

    def num_free(self, page_ids: Items, group: int) -> int:
        """The number of these pages that are FREE, in slabs of this group."""
        are_free = self._all_states[page_ids] == HostPageState.FREE
        return int(np.count_nonzero(are_free & self._slabs.are_of(page_ids, group)))

    def keys_of(self, page_ids: Iterable[int]) -> list[PageKey | None]:
        """What each of these pages holds; None for those that are not READY."""
        return list(map(self._keys.__getitem__, page_ids))

    def check(self) -> None:
        """Prove that the counts are those of the columns; O(pages).

        Raises AccountingError with the figures.
        """
        states = self._all_states
        is_read, is_ready = self._all_num_readers > 0, states == HostPageState.READY
        self._check_keys(is_ready)
        is_unready = (states == HostPageState.FILLING) | (states == HostPageState.QUARANTINED)
        is_held = is_unready | is_read
        used_at = np.zeros(len(states), dtype=np.int64)
        if self._is_shared:
            used_at = np.where(is_ready & ~is_read, view_of(self._used_at, np.int64), 0)

        counts = [[0] * len(HostPageState) for _ in self._counts]
        for slab in range(self._slabs.num_given):
            page_ids = self._slabs.page_ids(slab)
            own = slice(page_ids[0], page_ids[-1] + 1)
            by_state = np.bincount(states[own], minlength=len(HostPageState)).tolist()
            group = self._slabs.group_of(page_ids[0])
            counts[group] = [*map(add, counts[group], by_state)]
            num_held, last_use = int(np.count_nonzero(is_held[own])), int(used_at[own].max())
            self._slabs.check_slab(slab, by_state[HostPageState.READY], num_held, last_use)

        self._slabs.check()
        if counts != self._counts:
            raise AccountingError(
                f"pages by group and state {counts} counted; {self._counts} on record"
            )

    def _check_keys(self, is_ready: NDArray[np.bool_]) -> None:
        has_key = np.array([key is not None for key in self._keys])
        for page_id in np.flatnonzero(has_key != is_ready):
            state = HostPageState(self._states[page_id])
            raise AccountingError(
                f"host page {page_id} is {state.name} with key {self._keys[page_id]!r}"
            )
