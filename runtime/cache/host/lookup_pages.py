"""What becomes of the pages that lookups wait for."""

import itertools
from collections.abc import Iterable

from raydix.ids import ConnectionId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.messages.host import PageSource


class LookupPages:
    """Owns: which open lookups have news for the Schedulers that have asked."""

    def __init__(self, index: HostIndex, reads: HostReads) -> None:
        self._index = index
        self._reads = reads
        self._changed: dict[OpenLookup, None] = {}

    def note_change(self, lookup: OpenLookup) -> None:
        """Note that a lookup has news, or has just come."""
        self._changed[lookup] = None

    @property
    def has_news(self) -> bool:
        """Whether some lookup has news."""
        return bool(self._changed)

    def take_changed(self, max_lookups: int) -> list[OpenLookup]:
        """Take up to `max_lookups` lookups that have news, the oldest news first."""
        changed = list(itertools.islice(self._changed, max_lookups))
        for lookup in changed:
            del self._changed[lookup]
        return changed

    def forget(self, connection: ConnectionId) -> None:
        """Forget the news for a Scheduler whose connection is gone."""
        self._changed = {
            lookup: None for lookup in self._changed if lookup.connection != connection
        }

    def arrive(self, lookup: OpenLookup, group: int, index: int) -> None:
        """Note that a page from L3 is in L2."""
        if lookup.arrive(group, index):
            self.note_change(lookup)

    def fail(
        self, lookup: OpenLookup, group: int, failures: Iterable[tuple[int, PageSource]]
    ) -> bool:
        """Note that pages of a group, in order, will not come. Returns whether that is news."""
        is_news = lookup.fail(group, failures)
        if is_news:
            self._end_reads(lookup)
        return is_news

    def fail_unread(self, lookup: OpenLookup, group: int, source: PageSource) -> None:
        """Note that pages of a group that nobody reads yet for a lookup will not come."""
        if lookup.fail_unread(group, source):
            self._end_reads(lookup)

    def stop(self, lookup: OpenLookup, source: PageSource) -> None:
        """Note that no more pages will come for a lookup."""
        if lookup.stop(source):
            self._end_reads(lookup)

    def _end_reads(self, lookup: OpenLookup) -> None:
        # What is no longer of use for want of other pages need not be read.
        self.note_change(lookup)
        for group in range(len(lookup.missing)):
            self._reads.cancel_unwanted(group, lookup.unwanted_keys(group))

    def join(self, lookup: OpenLookup, group: int, index: int) -> bool:
        """Whether a lookup need not read a page: it is here, or somebody's read will bring it."""
        key = lookup.keys[index]
        if self._index.find(group, key) is not None:
            self.arrive(lookup, group, index)
            return True
        return self._reads.join(group, key, (lookup, index))

    def is_coming(self, lookup: OpenLookup, group: int, index: int) -> bool:
        """Whether a page is here or will be brought by somebody's read."""
        key = lookup.keys[index]
        return self._index.find(group, key) is not None or self._reads.is_reading(group, key)
