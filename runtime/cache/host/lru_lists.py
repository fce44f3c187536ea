"""Lists of host pages or slabs, the least recently used first, which never pause to grow."""

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int64]
"""The item numbers of several items, none of them twice."""


_TURN_ITEMS = 256


def view_of(column: "array[Any] | bytearray", dtype: type[np.generic]) -> NDArray[Any]:
    """View a column as a numpy array of the same memory, so that a whole chain is done at once.

    What concerns one item is faster in the column itself.
    """
    return np.frombuffer(column, dtype=dtype)


class LruLists:
    """Owns: one list of items per KV group, the least recently used first.

    Items are numbers from 0 on, and each is in one list at most. Each list is doubly linked, in two
    columns. An ordered dict of a million pages would stop for tens of milliseconds whenever it is
    built anew, which it is now and then even if it does not grow.
    """

    def __init__(self, num_items: int, num_groups: int) -> None:
        # Behind the items comes one end for each list, after its last item and before its first.
        ends = range(num_items, num_items + num_groups)
        self._num_items = num_items
        self._next = array("i", [-1]) * num_items + array("i", ends)
        self._previous = array("i", [-1]) * num_items + array("i", ends)
        """The item before each item in its list; -1: the item is in no list."""
        self._all_next, self._all_previous = (
            view_of(column, np.intc) for column in (self._next, self._previous)
        )
        self._lengths = [0] * num_groups

    def __contains__(self, item: int) -> bool:
        return self._next[item] >= 0

    def listed(self, items: Items) -> Items:
        """The items that are in a list, in the order given."""
        return items[self._all_next[items] >= 0]

    def length(self, group: int) -> int:
        """The number of items in a group's list."""
        return self._lengths[group]

    def oldest(self, group: int) -> int | None:
        """The first item of a group's list."""
        item = self._next[self._num_items + group]
        return item if item < self._num_items else None

    def items(self, group: int) -> Iterator[int]:
        """All items of a group's list, in order; O(items)."""
        item = self._next[self._num_items + group]
        while item < self._num_items:
            yield item
            item = self._next[item]

    def newest_first(self) -> Iterator[int]:
        """All items as they are listed now, however the lists change until they are asked for.

        The lists take turns, some items of each at a time.
        """
        # To copy a column of a million takes half a ms.
        previous = self._previous[:]
        ends = range(self._num_items, self._num_items + len(self._lengths))
        return _take_turns(previous, {end: previous[end] for end in ends})

    def clear(self) -> None:
        """Empty all lists by filling two columns, which takes half a ms for a million items."""
        self._all_next[: self._num_items] = self._all_previous[: self._num_items] = -1
        for group in range(len(self._lengths)):
            end = self._num_items + group
            self._next[end] = self._previous[end] = end
            self._lengths[group] = 0

    def append(self, group: int, item: int) -> None:
        """Add an item that is in no list, as the most recently used."""
        end = self._num_items + group
        last = self._previous[end]
        self._next[last] = self._previous[end] = item
        self._previous[item] = last
        self._next[item] = end
        self._lengths[group] += 1

    def prepend(self, group: int, item: int) -> None:
        """Add an item that is in no list, as the least recently used."""
        end = self._num_items + group
        first = self._next[end]
        self._previous[first] = self._next[end] = item
        self._next[item] = first
        self._previous[item] = end
        self._lengths[group] += 1

    def remove(self, group: int, item: int) -> None:
        """Take an item out of its group's list."""
        before, after = self._previous[item], self._next[item]
        self._next[before] = after
        self._previous[after] = before
        self._next[item] = self._previous[item] = -1
        self._lengths[group] -= 1

    def append_all(self, group: int, items: Items) -> None:
        """Add these items, one after another, as the most recently used."""
        if not len(items):
            return
        end = self._num_items + group
        last = self._previous[end]
        self._all_next[items[:-1]] = items[1:]
        self._all_previous[items[1:]] = items[:-1]

        first, newest = int(items[0]), int(items[-1])
        self._next[last], self._previous[first] = first, last
        self._next[newest], self._previous[end] = end, newest
        self._lengths[group] += len(items)

    def remove_all(self, group: int, items: Items) -> None:
        """Take these items out; a run of neighbours costs little more than one item."""
        if not len(items):
            return
        breaks = np.flatnonzero(self._all_next[items[:-1]] != items[1:])
        firsts = [int(items[0]), *items[breaks + 1].tolist()]
        lasts = [*items[breaks].tolist(), int(items[-1])]
        for first, last in zip(firsts, lasts, strict=True):
            before, after = self._previous[first], self._next[last]
            self._next[before] = after
            self._previous[after] = before

        self._all_next[items] = self._all_previous[items] = -1
        self._lengths[group] -= len(items)


def _take_turns(previous: "array[int]", last: dict[int, int]) -> Iterator[int]:
    """The items of several lists, from the last item of each on; a list ends where its end is."""
    while last:
        for end, item in list(last.items()):
            for _ in range(_TURN_ITEMS):
                if item == end:
                    del last[end]
                    break
                yield item
                item = previous[item]
            else:
                last[end] = item
