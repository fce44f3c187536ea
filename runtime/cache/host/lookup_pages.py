"""What becomes of the pages that lookups wait for."""

from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.messages.host import PageSource


class LookupPages:
    """Owns: which open lookups have news for the Scheduler."""

    def __init__(self, index: HostIndex, reads: HostReads) -> None:
        self._index = index
        self._reads = reads
        self._changed: dict[OpenLookup, None] = {}

    def note_change(self, lookup: OpenLookup) -> None:
        """A lookup has news, or has just come."""
        self._changed[lookup] = None

    def take_changed(self) -> list[OpenLookup]:
        """Lookups that have had news since the last call, in its order."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def clear(self) -> None:
        """There is nobody to tell any more."""
        self._changed.clear()

    def arrive(self, lookup: OpenLookup, group: int, index: int) -> None:
        """A page from L3 is in L2."""
        if lookup.arrive(group, index):
            self.note_change(lookup)

    def fail(self, lookup: OpenLookup, index: int, source: PageSource) -> None:
        """Some group's page at this place will not come, so reads behind it are not wanted."""
        if lookup.fail(index, source):
            self.note_change(lookup)
            for group, missing in enumerate(lookup.missing):
                self._reads.cancel_unwanted(
                    group, (lookup.keys[i] for i in missing if i >= lookup.end)
                )

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
