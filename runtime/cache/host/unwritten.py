"""Which pages of L2 are to be written to L3, and in which order."""

from array import array
from enum import IntEnum

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.lru_lists import LruLists, view_of


class Turn(IntEnum):
    """When a page is written: those of an earlier turn go before all of a later one."""

    FIRST = 0
    """A request has used the page, or its write was begun and came to nothing."""
    NEW = 1
    """The page was committed."""
    FILL = 2
    """L3 was asked about the page, and lacks it."""
    PUT_OFF = 3
    """The page's writes failed: it is left alone for a while."""


_WAITING = (Turn.FIRST, Turn.NEW, Turn.FILL)
_IN_NO_LIST = 255
_MAX_FAILURES = 255
"""The largest number of failed writes that is counted for a page."""


class UnwrittenPages:
    """Owns: which READY pages L3 is to get, the order of their writes, and how often each failed.

    All of L2 may be among them, so these facts are columns. A chain is entered from its head on and
    stays in that order, as a page is of no use in L3 without those before it.
    """

    def __init__(self, num_pages: int) -> None:
        """Start with nothing to write, for an L2 of `num_pages` pages."""
        self._num_pages = num_pages
        self._num_failures = bytearray(num_pages)
        self._retry_at_s = array("d", bytes(8 * num_pages))
        """The time at which each page that is put off waits again, by page id."""
        self._writing: set[HostPageId] = set()
        self._num_lost = 0
        self._lists = LruLists(num_pages, len(Turn))
        self._turns = bytearray([_IN_NO_LIST]) * num_pages
        self._all_turns = view_of(self._turns, np.uint8)

    def __contains__(self, page_id: HostPageId) -> bool:
        """Whether a page is to be written or is being written."""
        return self._turns[page_id] != _IN_NO_LIST or page_id in self._writing

    @property
    def num_waiting(self) -> int:
        """The number of pages that may be written now."""
        return sum(map(self._lists.length, _WAITING))

    @property
    def num_put_off(self) -> int:
        """The number of pages that are left alone for a while."""
        return self._lists.length(Turn.PUT_OFF)

    @property
    def next_retry_s(self) -> float | None:
        """The time at which the first page that is put off waits again."""
        page_id = self._lists.oldest(Turn.PUT_OFF)
        return None if page_id is None else self._retry_at_s[page_id]

    def next_page(self) -> HostPageId | None:
        """The page that is to be written next."""
        for turn in _WAITING:
            if (page_id := self._lists.oldest(turn)) is not None:
                return HostPageId(page_id)
        return None

    def add(self, page_id: HostPageId, turn: Turn) -> bool:
        """Add a READY page, after the others of this turn. Returns False if it was known."""
        if page_id in self:
            return False
        self._num_failures[page_id] = 0
        self._append(page_id, turn)
        return True

    def note_use(self, page_id: HostPageId) -> None:
        """Note that a request uses a page, which is therefore written before others that wait."""
        if self._turns[page_id] in (Turn.NEW, Turn.FILL):
            self._remove(page_id)
            self._append(page_id, Turn.FIRST)

    def start(self, page_id: HostPageId) -> None:
        """Begin to write a page that waits."""
        self._remove(page_id)
        self._writing.add(page_id)

    def finish(self, page_id: HostPageId) -> None:
        """Forget a page that was being written: it is in L3, or is not to get there any more."""
        self._writing.remove(page_id)

    def count_failure(self, page_id: HostPageId) -> int:
        """Count a failed write of a page; returns how many of its writes have failed."""
        self._num_failures[page_id] = min(self._num_failures[page_id] + 1, _MAX_FAILURES)
        return self._num_failures[page_id]

    def put_back(self, page_id: HostPageId) -> None:
        """Let a page that was being written be the next one, before what follows in its chain."""
        self._writing.remove(page_id)
        self._turns[page_id] = Turn.FIRST
        self._lists.prepend(Turn.FIRST, page_id)

    def put_off(self, page_id: HostPageId, retry_at_s: float) -> None:
        """Leave a page that was being written alone until `retry_at_s`, which is no earlier than
        for the others.
        """
        self._writing.remove(page_id)
        self._retry_at_s[page_id] = retry_at_s
        self._append(page_id, Turn.PUT_OFF)

    def retry(self, now_s: float, max_pages: int) -> None:
        """Let pages wait again that were put off until now, at most `max_pages` of them."""
        for _ in range(max_pages):
            page_id = self._lists.oldest(Turn.PUT_OFF)
            if page_id is None or self._retry_at_s[page_id] > now_s:
                break
            self._remove(HostPageId(page_id))
            self._append(HostPageId(page_id), Turn.NEW)

    def forget(self, page_id: HostPageId) -> None:
        """Forget a page that L2 drops; what was to be written is lost."""
        if self._turns[page_id] != _IN_NO_LIST:
            self._remove(page_id)
            self._num_lost += 1

    def take_num_lost(self) -> int:
        """Take the number of pages that were lost since the last call."""
        num_lost, self._num_lost = self._num_lost, 0
        return num_lost

    def clear(self) -> int:
        """Forget all pages that are not being written; returns how many they were."""
        num_pages = self.num_waiting + self.num_put_off
        self._lists.clear()
        self._all_turns[:] = _IN_NO_LIST
        return num_pages

    def _append(self, page_id: HostPageId, turn: Turn) -> None:
        self._turns[page_id] = turn
        self._lists.append(turn, page_id)

    def _remove(self, page_id: HostPageId) -> None:
        self._lists.remove(self._turns[page_id], page_id)
        self._turns[page_id] = _IN_NO_LIST

    def writing(self) -> set[HostPageId]:
        """The pages that are being written."""
        return self._writing.copy()

    def listed(self) -> set[HostPageId]:
        """The pages that wait or are put off; O(pages).

        Raises AccountingError if the lists and what is said of each page differ.
        """
        pages = [(HostPageId(item), turn) for turn in Turn for item in self._lists.items(turn)]
        num_listed = self._num_pages - self._turns.count(_IN_NO_LIST)
        are_right = all(self._turns[page_id] == turn for page_id, turn in pages)
        if not are_right or len(pages) != num_listed:
            raise AccountingError(
                f"{len(pages)} pages are listed for L3, {num_listed} on record: {pages}"
            )
        return {page_id for page_id, _ in pages}
