"""One lookup that is not final."""

from collections import deque

from raydix.ids import LookupId, PageKey
from raydix.runtime.messages.host import LookupProgress, PageSource, Urgency


class OpenLookup:
    """Owns: what is known so far of the pages of one chain, in every KV group.

    A page is named by its group and its place in the chain. In FULL and LATENT groups one that
    cannot be had ends the useful prefix of the chain for all groups.
    """

    def __init__(
        self,
        lookup_id: LookupId,
        urgency: Urgency,
        arrival: int,
        keys: list[PageKey],
        num_l1_pages: tuple[int, ...],
    ) -> None:
        """`arrival` counts lookups: the lower, the older. All pages count as L1's at first."""
        self.lookup_id = lookup_id
        self.urgency = urgency
        self.arrival = arrival
        self.keys = keys
        self.end = len(keys)
        """Pages from here on will not come."""

        self.missing: list[list[int]] = [[] for _ in num_l1_pages]
        """Per group: pages that L2 lacked on arrival, in order."""
        self.num_read = [0 for _ in num_l1_pages]
        """Per group: pages whose reads were ordered for it."""
        self.is_cancelled = False
        self._wanted: list[deque[int]] = [deque() for _ in num_l1_pages]
        """Per group: pages that L3 has and that nobody reads yet for this lookup, in order."""
        self._num_questions = 0
        """Questions to L3, one per group at most, that have no answer yet."""
        self._is_queued = False

        self._num_l1_pages = num_l1_pages
        self._sources = [bytearray([PageSource.L1]) * len(keys) for _ in num_l1_pages]

    @property
    def is_final(self) -> bool:
        """No page's source is open."""
        return not any(PageSource.PENDING in sources for sources in self._sources)

    @property
    def first_pending(self) -> int:
        """The first place at which some group's page is open; there is one."""
        places = (sources.find(PageSource.PENDING) for sources in self._sources)
        return min(place for place in places if place >= 0)

    @property
    def num_missing(self) -> int:
        """Places before the end at which L2 lacked some group's page."""
        return len({index for missing in self.missing for index in missing if index < self.end})

    @property
    def first_missing(self) -> int:
        """The first of these places; there is one."""
        return min(missing[0] for missing in self.missing if missing)

    def next_wanted(self) -> tuple[int, int] | None:
        """Group and place of the page to be read next: all groups' prefixes grow together."""
        heads = [(wanted[0], group) for group, wanted in enumerate(self._wanted) if wanted]
        index, group = min(heads, default=(None, 0))
        return None if index is None else (group, index)

    def is_waiting_for(self, index: int) -> bool:
        """Whether the page at this place, which was wanted, still is."""
        return index < self.end

    def report(self) -> LookupProgress:
        """What the Scheduler is told of it now."""
        return LookupProgress(
            lookup_id=self.lookup_id,
            sources=tuple(map(bytes, self._sources)),
            is_final=self.is_final,
        )

    def find_in_l2(self, group: int, index: int) -> None:
        """L2 held a page on arrival."""
        self._sources[group][index] = PageSource.L2

    def miss(self, group: int, index: int) -> None:
        """L2 lacked a page on arrival; the pages of a group are told in order."""
        self._sources[group][index] = PageSource.PENDING
        self.missing[group].append(index)

    def forget_missing_behind_end(self) -> int:
        """L3 is not to be asked for pages that will not come. Returns how many they are."""
        num_before = sum(map(len, self.missing))
        self.missing = [[i for i in missing if i < self.end] for missing in self.missing]
        return num_before - sum(map(len, self.missing))

    def arrive(self, group: int, index: int) -> bool:
        """A page from L3 is in L2. Returns whether that matters."""
        if index >= self.end:
            return False
        self._sources[group][index] = PageSource.L3
        return True

    def fail(self, index: int, source: PageSource) -> bool:
        """Some group's page will not come, and for want of it none after it is of use in any group.

        Returns whether that is news. What L1 holds stays L1's.
        """
        if index >= self.end:
            return False
        self.end = index
        for sources, num_l1_pages in zip(self._sources, self._num_l1_pages, strict=True):
            first = max(index, num_l1_pages)
            sources[first:] = bytes([source]) * (len(self.keys) - first)

        for wanted in self._wanted:
            while wanted and wanted[-1] >= index:
                wanted.pop()
        return True

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.is_cancelled = True

    def note_question(self) -> None:
        """L3 is asked about the missing pages of one group."""
        self._num_questions += 1

    def note_answer(self) -> bool:
        """L3 has answered, or nobody waits for that. Returns whether it was the last question."""
        self._num_questions -= 1
        return self._num_questions == 0

    def join_queue(self) -> bool:
        """It is to wait for its turn to read. Returns whether it did not yet."""
        was_queued, self._is_queued = self._is_queued, True
        return not was_queued

    def leave_queue(self) -> None:
        """It wants nothing more for now."""
        self._is_queued = False

    def want(self, group: int, index: int) -> None:
        """L3 has a page, and nobody reads it; the pages of a group are told in order."""
        self._wanted[group].append(index)

    def take_wanted(self, group: int) -> int | None:
        """Take the first page that is wanted of a group; None if there is none."""
        return self._wanted[group].popleft() if self._wanted[group] else None

    def count_read(self, group: int) -> None:
        """A read of one page was ordered for it."""
        self.num_read[group] += 1

    def want_again(self, group: int, index: int) -> bool:
        """The read that was to bring a page was cancelled. Returns whether it is needed again."""
        if index >= self.end:
            return False
        self._wanted[group] = deque(sorted((*self._wanted[group], index)))
        return True
