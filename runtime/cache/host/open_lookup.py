"""One lookup that is not final."""

from collections import deque
from dataclasses import dataclass, field

from raydix.ids import LookupId, PageKey
from raydix.runtime.messages.host import LookupProgress, PageSource, Urgency


@dataclass(slots=True, eq=False)
class OpenLookup:
    """Owns: what is known so far of the pages of one chain."""

    lookup_id: LookupId
    arrival: int
    """Counts lookups: the lower, the older."""
    urgency: Urgency
    group: int
    keys: list[PageKey]
    sources: bytearray
    end: int
    """Pages from here on will not come."""
    missing: list[int] = field(default_factory=list)
    """Pages that L2 lacked on arrival."""
    wanted: deque[int] = field(default_factory=deque)
    """Pages that L3 has and that nobody reads yet for this lookup, in order."""
    num_read: int = 0
    """Pages whose reads were ordered for it."""
    is_queued: bool = False
    """It waits for its turn to read."""
    is_cancelled: bool = False

    @property
    def is_final(self) -> bool:
        """No page's source is open."""
        return PageSource.PENDING not in self.sources

    def is_waiting_for(self, index: int) -> bool:
        """Whether page `index`, which was wanted, still is."""
        return index < self.end

    def arrive(self, index: int) -> bool:
        """A page from L3 is in L2. Returns whether that matters."""
        if index >= self.end:
            return False
        self.sources[index] = PageSource.L3
        return True

    def fail(self, index: int, source: PageSource) -> bool:
        """Page `index` will not come, and for want of it none after it is of use. Returns whether
        that is news.
        """
        if index >= self.end:
            return False
        self.end = index
        self.sources[index:] = bytes([source]) * (len(self.keys) - index)
        while self.wanted and self.wanted[-1] >= index:
            self.wanted.pop()
        return True

    def want_again(self, index: int) -> bool:
        """The read that was to bring a page was cancelled. Returns whether another one is needed."""
        if index >= self.end:
            return False
        self.wanted = deque(sorted((*self.wanted, index)))
        return True

    def report(self) -> LookupProgress:
        """What the Scheduler is told of it now."""
        return LookupProgress(
            lookup_id=self.lookup_id, sources=bytes(self.sources), is_final=self.is_final
        )
