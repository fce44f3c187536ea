"""The order in which unread host pages go, and the names of READY ones: neither ever pauses to
grow.
"""

from array import array
from collections.abc import Iterator

from raydix.ids import HostPageId, PageKey

_NUM_SHARDS = 64


class PageOrder:
    """Owns: one list of pages per group, the least recently used first; a page is in one at most.

    A doubly linked list in two columns. An ordered dict of a million pages would stop for tens of
    milliseconds whenever it is built anew, which it is now and then even if it does not grow.
    """

    def __init__(self, num_pages: int, num_groups: int) -> None:
        # Behind the pages comes one end for each group, after its last page and before its first.
        ends = range(num_pages, num_pages + num_groups)
        self._num_pages = num_pages
        self._next = array("i", [-1]) * num_pages + array("i", ends)
        self._previous = array("i", [-1]) * num_pages + array("i", ends)
        """-1: the page is in no list."""
        self._lengths = [0] * num_groups

    def __contains__(self, page_id: HostPageId) -> bool:
        return self._next[page_id] >= 0

    def length(self, group: int) -> int:
        """Pages in a group's list."""
        return self._lengths[group]

    def oldest(self, group: int) -> HostPageId | None:
        """The first page of a group's list."""
        page_id = self._next[self._num_pages + group]
        return HostPageId(page_id) if page_id < self._num_pages else None

    def pages(self, group: int) -> Iterator[HostPageId]:
        """All pages of a group's list; O(pages)."""
        page_id = self._next[self._num_pages + group]
        while page_id < self._num_pages:
            yield HostPageId(page_id)
            page_id = self._next[page_id]

    def append(self, group: int, page_id: HostPageId) -> None:
        """Add a page that is in no list, as the most recently used."""
        end = self._num_pages + group
        last = self._previous[end]
        self._next[last] = self._previous[end] = page_id
        self._previous[page_id] = last
        self._next[page_id] = end
        self._lengths[group] += 1

    def remove(self, group: int, page_id: HostPageId) -> None:
        """Take a page out of its group's list."""
        before, after = self._previous[page_id], self._next[page_id]
        self._next[before] = after
        self._previous[after] = before
        self._next[page_id] = self._previous[page_id] = -1
        self._lengths[group] -= 1


class PageNames:
    """Owns: which page holds each name of a group, in many small dicts, each of which grows
    quickly.
    """

    def __init__(self) -> None:
        self._shards: list[dict[PageKey, HostPageId]] = [{} for _ in range(_NUM_SHARDS)]
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[PageKey]:
        for shard in self._shards:
            yield from shard

    def page_ids(self) -> Iterator[HostPageId]:
        """All pages that have a name; O(pages)."""
        for shard in self._shards:
            yield from shard.values()

    def find(self, key: PageKey) -> HostPageId | None:
        """The page that holds `key`."""
        return self._shards[key[-1] % _NUM_SHARDS].get(key)

    def add(self, key: PageKey, page_id: HostPageId) -> None:
        """Name a page; nobody has the name."""
        self._shards[key[-1] % _NUM_SHARDS][key] = page_id
        self._length += 1

    def remove(self, key: PageKey) -> None:
        """Nobody has this name any more."""
        del self._shards[key[-1] % _NUM_SHARDS][key]
        self._length -= 1
