"""The state of every host page and slab of an arena, in columns, with counts that are kept as they
change.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from raydix.errors import AccountingError
from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.messages.arrays import Int32Array

_MAX_GENERATION = 2**31 - 1


class HostPageState(IntEnum):
    """What a host page is doing."""

    FREE = 0
    FILLING = 1
    """One holder writes it."""
    READY = 2
    """It holds the page that its key names; readers may pin it."""
    QUARANTINED = 3
    """A process that may still write it has not ended yet."""


@dataclass(slots=True)
class _Slab:
    group: int | None = None
    num_ready: int = 0
    num_held: int = 0
    """Pages that cannot be dropped now: FILLING, QUARANTINED, or READY with readers."""


class HostPages:
    """Owns: state, key, generation and readers of every host page, which group has each slab, and
    how many are what.

    There may be millions of pages, so each fact is a column: an object per page would cost hundreds
    of bytes, and a pause whenever Python looks for garbage.
    """

    def __init__(self, geometry: ArenaGeometry, generations: Int32Array | None) -> None:
        """Every page is FREE and no group has a slab."""
        num_pages = geometry.num_host_pages
        self._geometry = geometry
        self._states = bytearray(num_pages)
        self._num_readers = array("i", bytes(4 * num_pages))
        self._keys: list[PageKey | None] = [None] * num_pages
        self._generations = array("i", bytes(4 * num_pages))
        if generations is not None:
            self._generations = array("i", generations.tolist())

        self._slabs = [_Slab() for _ in range(geometry.num_slabs)]
        self._num_slabs_given = 0
        """Slabs are first given in order; later they only change hands."""
        self._num_idle_slabs = [0] * geometry.num_groups
        """Per group: slabs of which nobody holds a page."""
        self._counts = [[0] * len(HostPageState) for _ in range(geometry.num_groups)]

    # Queries --------------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Page ids of the arena."""
        return len(self._states)

    def state(self, page_id: HostPageId) -> HostPageState:
        """A page's state."""
        return HostPageState(self._states[page_id])

    def generation(self, page_id: HostPageId) -> int:
        """Changes whenever the page is handed out: 1 to 2**31 - 1, then 1 again; 0 before the first
        time.
        """
        return self._generations[page_id]

    def generations(self) -> "array[int]":
        """A copy of all generations, by page id."""
        return self._generations[:]

    def key(self, page_id: HostPageId) -> PageKey | None:
        """What a READY page holds; None for others."""
        return self._keys[page_id]

    def num_readers(self, page_id: HostPageId) -> int:
        """Readers of a page."""
        return self._num_readers[page_id]

    def is_filling(self, page_id: int, generation: int) -> bool:
        """Whether the page exists, is FILLING, and has not changed hands since `generation`."""
        if not 0 <= page_id < len(self._states):
            return False
        return (
            self._states[page_id] == HostPageState.FILLING
            and self._generations[page_id] == generation
        )

    def ready_pages(self, start: int, max_pages: int) -> list[HostPageId]:
        """The first READY pages with ids from `start` on; fewer than `max_pages` if there are no
        more.
        """
        pages: list[HostPageId] = []
        while len(pages) < max_pages:
            # A search for one byte passes over a million other pages in some tens of microseconds.
            start = self._states.find(HostPageState.READY, start) + 1
            if not start:
                break
            pages.append(HostPageId(start - 1))
        return pages

    def count(self, group: int, state: HostPageState) -> int:
        """Pages of the group's slabs in this state."""
        return self._counts[group][state]

    @property
    def total_readers(self) -> int:
        """Readers of all pages; O(pages)."""
        return sum(self._num_readers)

    @property
    def num_unused_slabs(self) -> int:
        """Slabs that no group has needed yet."""
        return len(self._slabs) - self._num_slabs_given

    # A page's life --------------------------------------------------------------------------------

    def hand_out(self, page_id: HostPageId) -> None:
        """FREE to FILLING, under a new generation."""
        slab = self._change(page_id, HostPageState.FREE, HostPageState.FILLING)
        self._hold(slab)
        # 0 stays the generation of pages that were never handed out, so it is nobody's by chance.
        self._generations[page_id] = self._generations[page_id] % _MAX_GENERATION + 1

    def fill(self, page_id: HostPageId, key: PageKey) -> None:
        """FILLING to READY."""
        slab = self._change(page_id, HostPageState.FILLING, HostPageState.READY)
        self._keys[page_id] = key
        slab.num_ready += 1
        self._unhold(slab)

    def quarantine(self, page_id: HostPageId) -> None:
        """FILLING to QUARANTINED."""
        self._change(page_id, HostPageState.FILLING, HostPageState.QUARANTINED)

    def give_back(self, page_id: HostPageId) -> None:
        """FILLING or QUARANTINED to FREE."""
        state = self.state(page_id)
        if state not in (HostPageState.FILLING, HostPageState.QUARANTINED):
            raise AccountingError(f"host page {page_id} is freed while {state.name}")
        self._unhold(self._change(page_id, state, HostPageState.FREE))

    def drop(self, page_id: HostPageId) -> PageKey:
        """READY without readers to FREE. Returns what it held."""
        slab = self._change(page_id, HostPageState.READY, HostPageState.FREE)
        key = self._keys[page_id]
        if key is None or self._num_readers[page_id]:
            raise AccountingError(
                f"host page {page_id} is dropped with {self._num_readers[page_id]} readers"
            )
        self._keys[page_id] = None
        slab.num_ready -= 1
        return key

    def add_reader(self, page_id: HostPageId) -> bool:
        """Whether it is the first reader of a READY page."""
        if self._states[page_id] != HostPageState.READY:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name}; expected READY"
            )
        self._num_readers[page_id] += 1
        if self._num_readers[page_id] > 1:
            return False
        self._hold(self._slab(page_id))
        return True

    def remove_reader(self, page_id: HostPageId) -> bool:
        """Whether it was the last one."""
        num_readers = self._num_readers[page_id]
        if num_readers == 0:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name} with no readers"
            )
        self._num_readers[page_id] = num_readers - 1
        if num_readers > 1:
            return False
        self._unhold(self._slab(page_id))
        return True

    def _change(self, page_id: HostPageId, old: HostPageState, new: HostPageState) -> _Slab:
        if self._states[page_id] != old:
            raise AccountingError(
                f"host page {page_id} is {self.state(page_id).name}; expected {old.name}"
            )
        self._states[page_id] = new
        slab = self._slab(page_id)
        assert slab.group is not None
        counts = self._counts[slab.group]
        counts[old] -= 1
        counts[new] += 1
        return slab

    # Slabs ----------------------------------------------------------------------------------------

    def group_of(self, page_id: HostPageId) -> int:
        """The group whose slab the page is in."""
        group = self._slab(page_id).group
        assert group is not None
        return group

    def give_unused_slab(self, group: int) -> list[HostPageId]:
        """Pages of a slab that the group gets and that nobody had before; none if there is none."""
        slab = self._num_slabs_given
        if slab == len(self._slabs):
            return []
        self._num_slabs_given += 1
        return self._give_slab(slab, group)

    def least_used_slab(self, group: int) -> list[HostPageId] | None:
        """Pages of the slab with the fewest READY ones, of those that others have and nobody holds."""
        if sum(self._num_idle_slabs) == self._num_idle_slabs[group]:
            return None
        _, index, loser = min(
            (slab.num_ready, index, slab.group)
            for index, slab in enumerate(self._slabs)
            if slab.group not in (None, group) and slab.num_held == 0
        )
        assert loser is not None
        return self._page_ids(index, loser)

    def move_slab(self, page_id: HostPageId, group: int) -> list[HostPageId]:
        """Give the slab of a page, all of whose pages are FREE, to another group. Returns the pages
        it has there.
        """
        index = self._geometry.slab_of(page_id)
        slab = self._slabs[index]
        assert slab.group is not None
        assert slab.num_ready == slab.num_held == 0
        self._counts[slab.group][HostPageState.FREE] -= self._geometry.slab_pages(slab.group)
        self._num_idle_slabs[slab.group] -= 1
        return self._give_slab(index, group)

    def _give_slab(self, index: int, group: int) -> list[HostPageId]:
        self._slabs[index].group = group
        self._counts[group][HostPageState.FREE] += self._geometry.slab_pages(group)
        self._num_idle_slabs[group] += 1
        return self._page_ids(index, group)

    def _page_ids(self, slab: int, group: int) -> list[HostPageId]:
        first = slab * self._geometry.pages_per_slab
        return list(map(HostPageId, range(first, first + self._geometry.slab_pages(group))))

    def _slab(self, page_id: HostPageId) -> _Slab:
        return self._slabs[page_id // self._geometry.pages_per_slab]

    def _hold(self, slab: _Slab) -> None:
        if slab.num_held == 0:
            assert slab.group is not None
            self._num_idle_slabs[slab.group] -= 1
        slab.num_held += 1

    def _unhold(self, slab: _Slab) -> None:
        slab.num_held -= 1
        if slab.num_held == 0:
            assert slab.group is not None
            self._num_idle_slabs[slab.group] += 1

    # Invariants -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove that the counts are those of the columns; O(pages). Raises AccountingError with the
        figures.
        """
        counts = [[0] * len(HostPageState) for _ in self._counts]
        num_idle = [0] * len(self._counts)
        for index, slab in enumerate(self._slabs):
            if slab.group is None:
                continue
            by_state, num_held = self._recount(self._page_ids(index, slab.group))
            for state in HostPageState:
                counts[slab.group][state] += by_state[state]
            num_idle[slab.group] += num_held == 0
            if (by_state[HostPageState.READY], num_held) != (slab.num_ready, slab.num_held):
                raise AccountingError(
                    f"slab {index}: {by_state[HostPageState.READY]} READY and {num_held} held pages "
                    f"counted, "
                    f"{slab.num_ready} and {slab.num_held} on record"
                )
        if (counts, num_idle) != (self._counts, self._num_idle_slabs):
            raise AccountingError(
                f"pages by group and state {counts}, idle slabs {num_idle} counted; "
                f"{self._counts}, {self._num_idle_slabs} on record"
            )

    def _recount(self, page_ids: Iterable[HostPageId]) -> tuple[list[int], int]:
        by_state = [0] * len(HostPageState)
        num_held = 0
        for page_id in page_ids:
            state = self._states[page_id]
            by_state[state] += 1
            num_held += (
                state in (HostPageState.FILLING, HostPageState.QUARANTINED)
                or self._num_readers[page_id] > 0
            )
            if (self._keys[page_id] is None) == (state == HostPageState.READY):
                raise AccountingError(
                    f"host page {page_id} is {HostPageState(state).name} with key "
                    f"{self._keys[page_id]!r}"
                )
        return by_state, num_held
