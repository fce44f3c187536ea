"""Lookups: what L2 and L3 hold of a chain, and fetching from L3 what L2 lacks."""

import heapq
from collections import Counter

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, LookupId, PageKey
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    Urgency,
)

_FORGOTTEN_AT_ONCE = 256


class HostLookups:
    """Owns: lookups that are not final, and the searches under way for them.

    The oldest lookup's pages are read first, since the Scheduler asks in the order of its queue;
    hints go last and leave half of the reads. What is fetched for a request stays staged until it
    is leased, its lookup is cancelled, or some time after the final report.
    """

    def __init__(
        self,
        settings: HostSettings,
        index: HostIndex,
        staged: StagedPages,
        orders: StorageOrders,
        reads: HostReads,
        counters: Counter[str],
    ) -> None:
        self._page_size = settings.page_size
        self._settings = settings.storage
        self._index = index
        self._staged = staged
        self._orders = orders
        self._reads = reads
        self._counters = counters
        self._lookups: dict[LookupId, OpenLookup] = {}
        self._num_arrived = 0
        self._changed: dict[OpenLookup, None] = {}
        self._turns: dict[Urgency, list[tuple[int, OpenLookup]]] = {
            urgency: [] for urgency in Urgency
        }
        """Heaps by arrival."""
        self._searches: dict[BatchId, tuple[OpenLookup, int]] = {}
        """Lookup and group."""
        self._num_hint_reads = [0] * index.num_groups
        """Per group, of all open hints."""
        self._forgotten: list[OpenLookup] = []
        """Of a Scheduler that is gone. To free thousands of chains at once would take tens of
        milliseconds.
        """

    @property
    def num_lookups(self) -> int:
        """Lookups that are not final."""
        return len(self._lookups)

    # From the Scheduler ---------------------------------------------------------------------------

    def start(self, message: Lookup, now_s: float) -> None:
        """Find out where the pages of a chain are.

        Raises AccountingError if the id is in use, or the message names other groups than L2 has.
        """
        if message.lookup_id in self._lookups:
            raise AccountingError(f"lookup {message.lookup_id} is started twice")
        if len(message.num_l1_pages) != self._index.num_groups:
            raise AccountingError(
                f"lookup {message.lookup_id} is for {len(message.num_l1_pages)} KV groups; "
                f"L2 has {self._index.num_groups}"
            )
        keys = split_keys(message.keys)
        self._num_arrived += 1
        lookup = OpenLookup(
            message.lookup_id, message.urgency, self._num_arrived, keys, message.num_l1_pages
        )
        self._lookups[message.lookup_id] = lookup
        self._changed[lookup] = None

        for group, num_l1_pages in enumerate(message.num_l1_pages):
            for index in range(num_l1_pages, len(keys)):
                if self._index.find(group, keys[index]) is not None:
                    lookup.find_in_l2(group, index)
                else:
                    lookup.miss(group, index)
        if lookup.num_missing:
            self._touch(lookup)
            self._search(lookup, now_s)

    def _touch(self, lookup: OpenLookup) -> None:
        for group in range(lookup.num_groups):
            self._index.touch_chain(group, lookup.keys)

    def _search(self, lookup: OpenLookup, now_s: float) -> None:
        """Ask L3 once per group which of the missing pages it has, if that may be of use."""
        self._skip_what_l3_lacks(lookup, now_s)
        num_missing = lookup.num_missing
        if not num_missing:
            return
        if not self._orders.is_in_use:
            self._fail(lookup, lookup.first_missing, PageSource.NOT_FOUND)
        elif num_missing * self._page_size < self._settings.min_tokens:
            self._fail(lookup, lookup.first_missing, PageSource.BELOW_MIN_TOKENS)
        elif not self._orders.is_readable:
            self._fail(lookup, lookup.first_missing, PageSource.IO_ERROR)
        else:
            for group, missing in enumerate(lookup.missing):
                if missing:
                    keys = b"".join(lookup.keys[index] for index in missing)
                    batch_id = self._orders.search(group, keys, now_s)
                    self._searches[batch_id] = (lookup, group)
                    lookup.num_searches += 1

    def _skip_what_l3_lacks(self, lookup: OpenLookup, now_s: float) -> None:
        """Do not ask again for what was missing a moment ago, nor for what comes after it."""
        for group, missing in enumerate(lookup.missing):
            for index in missing:
                if index >= lookup.end:
                    break
                if self._orders.missing.has(group, lookup.keys[index], now_s):
                    self._fail(lookup, index, PageSource.NOT_FOUND)
        self._counters["l3_pages_known_missing"] += lookup.forget_missing_behind_end()

    def cancel(self, lookup_id: LookupId) -> None:
        """Fetch no more for this lookup, and keep nothing for it, even if its final report has been
        sent.
        """
        self._staged.cancel(lookup_id)
        lookup = self._lookups.get(lookup_id)
        if lookup is not None:
            lookup.is_cancelled = True
            self._fail(lookup, lookup.first_pending, PageSource.CANCELLED)

    def cancel_all(self) -> None:
        """The Scheduler is gone: forget its lookups without a report."""
        self._forgotten.extend(self._lookups.values())
        self._lookups.clear()
        self._changed.clear()
        self._searches.clear()
        for turns in self._turns.values():
            turns.clear()
        self._num_hint_reads = [0] * len(self._num_hint_reads)
        self._reads.cancel_all()
        self._staged.cancel_all()

    def retire(self) -> None:
        """L3 is not to be used any more: every lookup ends with what has come."""
        for lookup in list(self._lookups.values()):
            if not lookup.is_final:
                self._fail(lookup, lookup.first_pending, PageSource.CANCELLED)

    # Orders ---------------------------------------------------------------------------------------

    def dispatch(self, now_s: float) -> None:
        """Order reads, the oldest lookup's first, while not too many are in flight."""
        del self._forgotten[-_FORGOTTEN_AT_ONCE:]

        for urgency, turns in self._turns.items():
            max_batches = -(-self._settings.max_read_batches // (1 + urgency))
            while turns and not (
                self._orders.is_readable and self._reads.num_current >= max_batches
            ):
                lookup = turns[0][1]
                if (wanted := lookup.next_wanted()) is not None:
                    group, index = wanted
                    if self._orders.is_readable:
                        self._read_some(lookup, group, now_s)
                    else:
                        self._fail(lookup, index, PageSource.IO_ERROR)
                if lookup.next_wanted() is None:
                    heapq.heappop(turns)
                    lookup.is_queued = False

    def _queue(self, lookup: OpenLookup) -> None:
        if not lookup.is_queued:
            lookup.is_queued = True
            heapq.heappush(self._turns[lookup.urgency], (lookup.arrival, lookup))

    def _read_some(self, lookup: OpenLookup, group: int, now_s: float) -> None:
        """Take a group's wanted pages until a batch is full; those that came or are being read
        already cost nothing.
        """
        indices: list[int] = []
        page_ids: list[HostPageId] = []
        wanted = lookup.wanted[group]
        while wanted and len(indices) < self._settings.batch_pages:
            index = wanted.popleft()
            if self._join(lookup, group, index):
                continue
            page_id = None if self._is_hint_full(lookup, group) else self._reads.allocate(group)
            if page_id is None:
                self._fail(lookup, index, PageSource.NO_HOST_PAGE)
                break
            indices.append(index)
            page_ids.append(page_id)
            lookup.num_read[group] += 1
            self._num_hint_reads[group] += lookup.urgency is Urgency.HINT
        if indices:
            self._reads.start(lookup, group, indices, page_ids, now_s)

    def _is_hint_full(self, lookup: OpenLookup, group: int) -> bool:
        """The open hints together bring no more of a group than may be staged."""
        if lookup.urgency is not Urgency.HINT:
            return False
        return self._num_hint_reads[group] >= self._staged.max_pages[group]

    def _join(self, lookup: OpenLookup, group: int, index: int) -> bool:
        """Whether a page need not be read for this lookup: it is here, or somebody's read will
        bring it.
        """
        key = lookup.keys[index]
        if self._index.find(group, key) is not None:
            self._arrive(lookup, group, index)
            return True
        return self._reads.join(group, key, (lookup, index))

    # Answers --------------------------------------------------------------------------------------

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the answer to a search or a batch of reads; others are ignored."""
        searched = self._searches.pop(done.batch_id, None)
        if searched is not None:
            self._finish_search(*searched, done, now_s)
        # All pages of a batch are READY by now: a failed one must not end what waits for the
        # others.
        for outcome in self._reads.finish(done, now_s):
            for waiting, index in outcome.waiters:
                if outcome.status is ObjectStatus.OK:
                    self._arrive(waiting, outcome.group, index)
                elif not outcome.is_unwanted:
                    self._fail(waiting, index, outcome.status.source_of_miss)
                elif waiting.want_again(outcome.group, index):
                    # Its read was cancelled for others before this lookup joined it.
                    self._queue(waiting)

    def _finish_search(
        self, lookup: OpenLookup, group: int, done: ObjectsDone, now_s: float
    ) -> None:
        found = list(zip(lookup.missing[group], done.statuses, strict=True))
        for index, code in found:
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(group, lookup.keys[index], now_s)

        for index, code in found:
            if code != ObjectStatus.OK and not self._is_coming(group, lookup.keys[index]):
                self._fail(lookup, index, ObjectStatus(code).source_of_miss)
                break
        self._end_search(lookup)

    def _end_search(self, lookup: OpenLookup) -> None:
        """Once every group's search has ended, want what L3 has of the prefix that all can have."""
        lookup.num_searches -= 1
        if lookup.num_searches:
            return
        if 0 < lookup.num_missing * self._page_size < self._settings.min_tokens:
            self._fail(lookup, lookup.first_missing, PageSource.BELOW_MIN_TOKENS)
        for group, missing in enumerate(lookup.missing):
            lookup.wanted[group].extend(
                index
                for index in missing
                if lookup.is_waiting_for(index) and not self._join(lookup, group, index)
            )
        if lookup.next_wanted() is not None:
            self._queue(lookup)

    def _is_coming(self, group: int, key: PageKey) -> bool:
        return self._index.find(group, key) is not None or self._reads.is_reading(group, key)

    def _arrive(self, lookup: OpenLookup, group: int, index: int) -> None:
        if lookup.arrive(group, index):
            self._changed[lookup] = None

    def _fail(self, lookup: OpenLookup, index: int, source: PageSource) -> None:
        if lookup.fail(index, source):
            self._changed[lookup] = None
            for group, missing in enumerate(lookup.missing):
                self._reads.cancel_unwanted(
                    group, (lookup.keys[i] for i in missing if i >= lookup.end)
                )

    # Trouble --------------------------------------------------------------------------------------

    def give_up(self, batch_id: BatchId) -> None:
        """A batch is overdue: nobody waits for it any longer."""
        lookup, group = self._searches.pop(batch_id, (None, 0))
        if lookup is not None:
            self._fail(lookup, lookup.missing[group][0], PageSource.TIMED_OUT)
            self._end_search(lookup)
        for waiting, index in self._reads.give_up(batch_id):
            self._fail(waiting, index, PageSource.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """The storage actor is gone: everything asked of it fails. The FILLING pages pass to the
        caller.
        """
        waiters, held = self._reads.lose()
        for lookup, group in self._searches.values():
            self._fail(lookup, lookup.missing[group][0], PageSource.IO_ERROR)
            self._end_search(lookup)
        self._searches.clear()
        for lookup, index in waiters:
            self._fail(lookup, index, PageSource.IO_ERROR)
        return held

    # Reports --------------------------------------------------------------------------------------

    def take_reports(self, now_s: float) -> list[LookupProgress]:
        """One report for each lookup that has changed; a final one ends it and touches its chain
        again.
        """
        changed, self._changed = self._changed, {}
        reports = [lookup.report() for lookup in changed]
        for lookup, report in zip(changed, reports, strict=True):
            if report.is_final:
                self._end(lookup, now_s)
        return reports

    def _end(self, lookup: OpenLookup, now_s: float) -> None:
        del self._lookups[lookup.lookup_id]
        if lookup.urgency is Urgency.HINT:
            for group, num_read in enumerate(lookup.num_read):
                self._num_hint_reads[group] -= num_read
        elif not lookup.is_cancelled:
            self._staged.end(lookup.lookup_id, lookup.keys[: lookup.end], now_s)
        self._touch(lookup)
