"""Lookups: what L2 and L3 hold of a chain, and fetching from L3 what L2 lacks."""

import heapq
from collections import Counter

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, LookupId, PageKey
from raydix.runtime.cache.host.events import HostSettings
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.messages.host import (
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    Urgency,
    split_keys,
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
        self._finds: dict[BatchId, OpenLookup] = {}
        self._num_hint_reads = 0
        """Of all open hints."""
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
        """Find out where the pages of a chain are. Raises AccountingError if the id is in use."""
        if message.lookup_id in self._lookups:
            raise AccountingError(f"lookup {message.lookup_id} is started twice")
        keys = split_keys(message.keys)
        self._num_arrived += 1
        lookup = OpenLookup(
            lookup_id=message.lookup_id,
            arrival=self._num_arrived,
            urgency=message.urgency,
            group=message.group,
            keys=keys,
            sources=bytearray([PageSource.L1]) * len(keys),
            end=len(keys),
        )
        self._lookups[message.lookup_id] = lookup
        self._changed[lookup] = None
        for index in range(message.num_l1_pages, len(keys)):
            if self._index.find(message.group, keys[index]) is not None:
                lookup.sources[index] = PageSource.L2
            else:
                lookup.sources[index] = PageSource.PENDING
                lookup.missing.append(index)
        if lookup.missing:
            self._index.touch_chain(message.group, keys)
            self._find(lookup, now_s)

    def _find(self, lookup: OpenLookup, now_s: float) -> None:
        self._skip_what_l3_lacks(lookup, now_s)
        if not lookup.missing:
            return
        first = lookup.missing[0]
        if not self._orders.is_in_use:
            self._fail(lookup, first, PageSource.NOT_FOUND)
        elif len(lookup.missing) * self._page_size < self._settings.min_tokens:
            self._fail(lookup, first, PageSource.BELOW_MIN_TOKENS)
        elif not self._orders.is_readable:
            self._fail(lookup, first, PageSource.IO_ERROR)
        else:
            keys = b"".join(lookup.keys[index] for index in lookup.missing)
            self._finds[self._orders.find(lookup.group, keys, now_s)] = lookup

    def _skip_what_l3_lacks(self, lookup: OpenLookup, now_s: float) -> None:
        """Do not ask again for what was missing a moment ago, nor for what comes after it."""
        for place, index in enumerate(lookup.missing):
            if self._orders.missing.has(lookup.group, lookup.keys[index], now_s):
                self._counters["l3_pages_known_missing"] += len(lookup.missing) - place
                self._fail(lookup, index, PageSource.NOT_FOUND)
                del lookup.missing[place:]
                return

    def cancel(self, lookup_id: LookupId) -> None:
        """Fetch no more for this lookup, and keep nothing for it, even if its final report has been
        sent.
        """
        self._staged.cancel(lookup_id)
        lookup = self._lookups.get(lookup_id)
        if lookup is not None:
            lookup.is_cancelled = True
            self._fail(lookup, lookup.sources.index(PageSource.PENDING), PageSource.CANCELLED)

    def cancel_all(self) -> None:
        """The Scheduler is gone: forget its lookups without a report."""
        self._forgotten.extend(self._lookups.values())
        self._lookups.clear()
        self._changed.clear()
        self._finds.clear()
        for turns in self._turns.values():
            turns.clear()
        self._num_hint_reads = 0
        self._reads.cancel_all()
        self._staged.cancel_all()

    def retire(self) -> None:
        """L3 is not to be used any more: every lookup ends with what has come."""
        for lookup in list(self._lookups.values()):
            if not lookup.is_final:
                self._fail(lookup, lookup.sources.index(PageSource.PENDING), PageSource.CANCELLED)

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
                if lookup.wanted and not self._orders.is_readable:
                    self._fail(lookup, lookup.wanted[0], PageSource.IO_ERROR)
                elif lookup.wanted:
                    self._read_some(lookup, now_s)
                if not lookup.wanted:
                    heapq.heappop(turns)
                    lookup.is_queued = False

    def _queue(self, lookup: OpenLookup) -> None:
        if not lookup.is_queued:
            lookup.is_queued = True
            heapq.heappush(self._turns[lookup.urgency], (lookup.arrival, lookup))

    def _read_some(self, lookup: OpenLookup, now_s: float) -> None:
        """Take wanted pages until a batch is full; those that came or are being read already cost
        nothing.
        """
        indices: list[int] = []
        page_ids: list[HostPageId] = []
        while lookup.wanted and len(indices) < self._settings.batch_pages:
            index = lookup.wanted.popleft()
            if self._join(lookup, index):
                continue
            page_id = None if self._is_hint_full(lookup) else self._reads.allocate(lookup.group)
            if page_id is None:
                self._fail(lookup, index, PageSource.NO_HOST_PAGE)
                break
            indices.append(index)
            page_ids.append(page_id)
            lookup.num_read += 1
            self._num_hint_reads += lookup.urgency is Urgency.HINT
        if indices:
            self._reads.start(lookup, indices, page_ids, now_s)

    def _is_hint_full(self, lookup: OpenLookup) -> bool:
        """The open hints together bring no more than may be staged."""
        return lookup.urgency is Urgency.HINT and self._num_hint_reads >= self._staged.max_pages(
            lookup.group
        )

    def _join(self, lookup: OpenLookup, index: int) -> bool:
        """Whether a page need not be read for this lookup: it is here, or somebody's read will
        bring it.
        """
        key = lookup.keys[index]
        if self._index.find(lookup.group, key) is not None:
            self._arrive(lookup, index)
            return True
        return self._reads.join(lookup.group, key, (lookup, index))

    # Answers --------------------------------------------------------------------------------------

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the answer to a search or a batch of reads; others are ignored."""
        lookup = self._finds.pop(done.batch_id, None)
        if lookup is not None:
            self._finish_find(lookup, done, now_s)
        # All pages of a batch are READY by now: a failed one must not end what waits for the
        # others.
        for outcome in self._reads.finish(done, now_s):
            for waiting, index in outcome.waiters:
                if outcome.status is ObjectStatus.OK:
                    self._arrive(waiting, index)
                elif not outcome.is_unwanted:
                    self._fail(waiting, index, outcome.status.source_of_miss)
                elif waiting.want_again(index):
                    # Its read was cancelled for others before this lookup joined it.
                    self._queue(waiting)

    def _finish_find(self, lookup: OpenLookup, done: ObjectsDone, now_s: float) -> None:
        for index, code in zip(lookup.missing, done.statuses, strict=True):
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(lookup.group, lookup.keys[index], now_s)
        if lookup.end <= lookup.missing[0]:
            return
        hits: list[int] = []
        for index, code in zip(lookup.missing, done.statuses, strict=True):
            if code != ObjectStatus.OK and not self._is_coming(lookup.group, lookup.keys[index]):
                self._fail(lookup, index, ObjectStatus(code).source_of_miss)
                break
            hits.append(index)
        if 0 < len(hits) * self._page_size < self._settings.min_tokens:
            self._fail(lookup, hits[0], PageSource.BELOW_MIN_TOKENS)
        else:
            lookup.wanted.extend(index for index in hits if not self._join(lookup, index))
            self._queue(lookup)

    def _is_coming(self, group: int, key: PageKey) -> bool:
        return self._index.find(group, key) is not None or self._reads.is_reading(group, key)

    def _arrive(self, lookup: OpenLookup, index: int) -> None:
        if lookup.arrive(index):
            self._changed[lookup] = None

    def _fail(self, lookup: OpenLookup, index: int, source: PageSource) -> None:
        if lookup.fail(index, source):
            self._changed[lookup] = None
            self._reads.cancel_unwanted(
                lookup.group, (lookup.keys[i] for i in lookup.missing if i >= lookup.end)
            )

    # Trouble --------------------------------------------------------------------------------------

    def give_up(self, batch_id: BatchId) -> None:
        """A batch is overdue: nobody waits for it any longer."""
        lookup = self._finds.pop(batch_id, None)
        if lookup is not None:
            self._fail(lookup, lookup.missing[0], PageSource.TIMED_OUT)
        for waiting, index in self._reads.give_up(batch_id):
            self._fail(waiting, index, PageSource.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """The storage actor is gone: everything asked of it fails. The FILLING pages pass to the
        caller.
        """
        waiters, held = self._reads.lose()
        for lookup in self._finds.values():
            self._fail(lookup, lookup.missing[0], PageSource.IO_ERROR)
        self._finds.clear()
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
            self._num_hint_reads -= lookup.num_read
        elif not lookup.is_cancelled:
            self._staged.end(lookup.lookup_id, lookup.group, lookup.keys[: lookup.end], now_s)
        self._index.touch_chain(lookup.group, lookup.keys)
