"""Dropping all of L2 that nobody reads or writes."""

from collections import Counter

from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.staged_pages import StagedPages


class HostFlush:
    """Owns: how far a flush has come.

    It walks over the index piece by piece and decides for each page as it comes by: a page that is
    leased or being written then stays, as one that is FILLING does. What is published behind the
    walk stays; what is published ahead of it goes, as if the flush had been asked for a moment
    later. Each page that was there when the flush was asked for and that nobody has used since is
    gone in the end, since its id has not changed.
    """

    def __init__(
        self, index: HostIndex, staged: StagedPages, piece_pages: int, counters: Counter[str]
    ) -> None:
        self._index = index
        self._staged = staged
        self._piece_pages = piece_pages
        self._counters = counters
        self._walked_to: int | None = None
        """The first page that has not been decided on; None: no flush is under way."""
        self._num_dropped = 0

    @property
    def has_work(self) -> bool:
        """Whether a flush is under way."""
        return self._walked_to is not None

    def start(self) -> None:
        """Start a flush; one that is under way starts over, and both end as one."""
        self._walked_to = 0

    def advance(self) -> int | None:
        """Take the next piece. After the last one, returns how many pages were dropped in all."""
        if self._walked_to is None:
            return None
        page_ids = self._index.ready_pages(self._walked_to, self._piece_pages)
        for page_id in page_ids:
            name = self._index.name(page_id)
            assert name is not None
            self._staged.release(name[0], (name[1],))
            self._num_dropped += self._index.drop_unread(page_id)
        if len(page_ids) == self._piece_pages:
            self._walked_to = page_ids[-1] + 1
            return None

        self._walked_to = None
        num_dropped, self._num_dropped = self._num_dropped, 0
        self._counters["pages_flushed"] += num_dropped
        return num_dropped
