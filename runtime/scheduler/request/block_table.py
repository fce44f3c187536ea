"""A request's block table, and how much of it the device has been told."""

from collections.abc import Sequence

from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.messages.arrays import int32_array


class BlockTable:
    """Owns: the page ids of one request in order, per KV group, and how many the device knows.

    The tables of all groups are equally long. Where a group holds nothing of a page, its table has
    the padding page 0: of a WINDOW group, behind the window. What the device knows there is out of
    date, but no row reads it any more.
    """

    __slots__ = ("_num_left", "_num_sent", "_page_ids")

    def __init__(self, page_ids: PageIds) -> None:
        """Start with these pages; no KV group at all for a request that does not run."""
        self._page_ids = [ids.tolist() for ids in page_ids]
        self._num_left = [0] * len(self._page_ids)
        """Per KV group, the first page that was not left behind: the table has 0 for all before it.
        """
        self._num_sent = 0

    def __len__(self) -> int:
        return len(self._page_ids[0]) if self._page_ids else 0

    @property
    def has_unsent(self) -> bool:
        """Whether the device's copy of the table is out of date."""
        return self._num_sent < len(self)

    def pages(self, start: int, stop: int | None = None) -> PageIds:
        """Page ids [start, stop), to the end by default."""
        return tuple([int32_array(ids[start:stop]) for ids in self._page_ids])

    def extend(self, page_ids: PageIds) -> None:
        """Append pages to the table."""
        for known, new in zip(self._page_ids, page_ids, strict=True):
            known.extend(new.tolist())

    def replace(self, start: int, page_ids: PageIds) -> None:
        """Put other pages from `start` on, for the same tokens; the device is told of them."""
        for known, new in zip(self._page_ids, page_ids, strict=True):
            known[start : start + len(new)] = new.tolist()
        self._num_sent = min(self._num_sent, start)

    def at(self, places: Sequence[Sequence[int]]) -> PageIds:
        """Per group, the page ids at these places."""
        pairs = zip(self._page_ids, places, strict=True)
        return tuple([int32_array([known[place] for place in group]) for known, group in pairs])

    def leave(self, starts: Sequence[int]) -> PageIds:
        """Per group, give up all pages before `starts`; returns those that the group held."""
        left: list[list[int]] = []
        for group, (known, start) in enumerate(zip(self._page_ids, starts, strict=True)):
            former = self._num_left[group]
            left.append(known[former:start])
            if start > former:
                known[former:start] = [0] * len(left[-1])
                self._num_left[group] = start
        return tuple([int32_array(ids) for ids in left])

    def num_held_from(self, start: int) -> tuple[int, ...]:
        """The number of pages from `start` on that the table holds, per KV group."""
        return tuple([sum(page_id > 0 for page_id in known[start:]) for known in self._page_ids])

    def cut(self, stop: int) -> PageIds:
        """Keep the first `stop` pages; returns the others."""
        surplus = self.pages(stop)
        for known in self._page_ids:
            del known[stop:]
        self._num_sent = min(self._num_sent, stop)
        return surplus

    def take_unsent(self) -> tuple[int, list[list[int]]]:
        """Where the device's copy is out of date and each group's pages from there on, to tell."""
        start, self._num_sent = self._num_sent, len(self)
        return start, [known[start:] for known in self._page_ids]
