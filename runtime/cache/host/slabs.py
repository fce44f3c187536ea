"""Which KV group has each slab of an arena, and which slab may go to another group."""

from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.lru_lists import Items, LruLists


class HostSlabs:
    """Owns: the group of each slab, how many of its pages are READY and held, and its last use.

    A page is held while it cannot be dropped: FILLING, QUARANTINED, or READY with readers. A slab
    is idle while none of its pages is held. It was last used when a page of it was, or when it
    became idle; one without a READY page is older than all others.
    """

    def __init__(self, geometry: ArenaGeometry) -> None:
        """Start with no slab given to a group."""
        num_slabs = geometry.num_slabs
        self._geometry = geometry
        self._pages_per_slab = geometry.pages_per_slab
        self._groups: list[int | None] = [None] * num_slabs
        self._num_ready = array("i", bytes(4 * num_slabs))
        self._num_held = array("i", bytes(4 * num_slabs))
        self._used_at = array("q", bytes(8 * num_slabs))
        """The last use of each slab, on the clock of `HostPages`; 0: none of its pages is READY."""
        self._idle = LruLists(num_slabs, geometry.num_groups)
        self._num_given = 0
        """The number of slabs given to groups, in order; afterwards they only change hands."""

    @property
    def num_given(self) -> int:
        """The number of slabs that groups have, which are the first ones."""
        return self._num_given

    @property
    def num_unused(self) -> int:
        """The number of slabs that no KV group has needed yet."""
        return len(self._groups) - self._num_given

    def group_of(self, page_id: int) -> int:
        """The group whose slab the page is in."""
        group = self._groups[page_id // self._pages_per_slab]
        assert group is not None
        return group

    def are_of(self, page_ids: Items, group: int) -> NDArray[np.bool_]:
        """Whether each of these pages is in a slab of this group."""
        is_own = np.array([each == group for each in self._groups])
        are_own: NDArray[np.bool_] = is_own[page_ids // self._pages_per_slab]
        return are_own

    def page_ids(self, slab: int) -> list[HostPageId]:
        """The pages that the group of a slab has in it."""
        group = self._groups[slab]
        assert group is not None
        first = slab * self._pages_per_slab
        return list(map(HostPageId, range(first, first + self._geometry.slab_pages(group))))

    def oldest_of_others(self, group: int) -> int | None:
        """The least recently used idle slab of another group; None if there is none."""
        found: int | None = None
        for other in range(self._geometry.num_groups):
            slab = None if other == group else self._idle.oldest(other)
            if slab is not None and (found is None or self._used_at[slab] < self._used_at[found]):
                found = slab
        return found

    def used_at(self, slab: int) -> int:
        """The time at which a slab was last used."""
        return self._used_at[slab]

    def give_unused(self, group: int) -> int | None:
        """Give an unused slab to the group; None if groups have all slabs."""
        slab = self._num_given
        if slab == len(self._groups):
            return None
        self._num_given += 1
        self._groups[slab] = group
        self._idle.prepend(group, slab)
        return slab

    def move(self, slab: int, group: int) -> None:
        """Give a slab, all of whose pages are FREE, to another group."""
        loser = self._groups[slab]
        assert loser is not None
        assert self._num_ready[slab] == self._num_held[slab] == 0
        self._idle.remove(loser, slab)
        self._groups[slab] = group
        self._idle.prepend(group, slab)

    def use(self, page_id: int, now: int) -> None:
        """Make a READY page that nobody holds the most recently used of all."""
        slab = page_id // self._pages_per_slab
        self._used_at[slab] = now
        if self._num_held[slab] == 0:
            group = self._groups[slab]
            assert group is not None
            self._idle.remove(group, slab)
            self._idle.append(group, slab)

    def hold(self, page_id: int) -> None:
        """Hold a page, so that it cannot be dropped."""
        slab = page_id // self._pages_per_slab
        if self._num_held[slab] == 0:
            group = self._groups[slab]
            assert group is not None
            self._idle.remove(group, slab)
        self._num_held[slab] += 1

    def hold_all(self, page_ids: Items) -> None:
        """Hold each of these pages."""
        for slab, num_pages in Counter((page_ids // self._pages_per_slab).tolist()).items():
            self.hold(slab * self._pages_per_slab)
            self._num_held[slab] += num_pages - 1

    def unhold(self, page_id: int, now: int) -> None:
        """Note that a page that was held can be dropped again, or is FREE."""
        slab = page_id // self._pages_per_slab
        self._num_held[slab] -= 1
        if self._num_held[slab]:
            return
        group = self._groups[slab]
        assert group is not None
        if self._num_ready[slab]:
            # Its READY pages may have been used earlier, but to find its place by that would take a
            # search through the list.
            self._used_at[slab] = now
            self._idle.append(group, slab)
        else:
            self._idle.prepend(group, slab)

    def add_ready(self, page_id: int) -> None:
        """Note that a page becomes READY, while it is held."""
        self._num_ready[page_id // self._pages_per_slab] += 1

    def remove_ready(self, page_id: int) -> None:
        """Note that a page that nobody holds is READY no more."""
        slab = page_id // self._pages_per_slab
        self._num_ready[slab] -= 1
        if self._num_ready[slab]:
            return
        self._used_at[slab] = 0
        if self._num_held[slab] == 0:
            group = self._groups[slab]
            assert group is not None
            self._idle.remove(group, slab)
            self._idle.prepend(group, slab)

    def check_slab(self, slab: int, num_ready: int, num_held: int, last_use: int) -> None:
        """Raises AccountingError unless these are its figures; `last_use`: of its READY pages."""
        on_record = (self._num_ready[slab], self._num_held[slab])
        if (num_ready, num_held) != on_record or last_use > self._used_at[slab]:
            raise AccountingError(
                f"slab {slab}: {num_ready} READY and {num_held} held pages counted, last used at "
                f"{last_use}; {on_record} and {self._used_at[slab]} on record"
            )

    def check(self) -> None:
        """Raises AccountingError unless the idle slabs are listed, in the order of their use."""
        given = list(enumerate(self._groups[: self._num_given]))
        for group in range(self._geometry.num_groups):
            listed = list(self._idle.items(group))
            idle = [slab for slab, owner in given if owner == group and not self._num_held[slab]]
            if sorted(listed) != idle or not _is_sorted(self._used_at[slab] for slab in listed):
                raise AccountingError(
                    f"group {group}: slabs {idle} are idle, {listed} on record, used at "
                    f"{[self._used_at[slab] for slab in listed]}"
                )


def _is_sorted(values: Iterable[int]) -> bool:
    in_order = list(values)
    return in_order == sorted(in_order)
