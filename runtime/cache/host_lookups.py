"""Lookups: what L2 and L3 hold of a request's chain, and fetching from L3 what L2 lacks."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from raydix.ids import BatchId, HostPageId, PageKey, RequestId
from raydix.runtime.cache.host_events import HostEffect, HostSettings, SetGenerations
from raydix.runtime.cache.host_holds import StagedPages
from raydix.runtime.cache.host_index import HostIndex
from raydix.runtime.cache.storage_orders import StorageOrders
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    Urgency,
    split_keys,
)


@dataclass(slots=True, eq=False)
class _Lookup:
    request_id: RequestId
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


@dataclass(slots=True, eq=False)
class _ReadBatch:
    group: int
    keys: list[PageKey]
    page_ids: list[HostPageId]
    is_cancelled: bool = False
    is_overdue: bool = False


@dataclass(slots=True, eq=False)
class _Read:
    batch_id: BatchId
    waiters: list[tuple[_Lookup, int]]


class HostLookups:
    """Owns: lookups that are not final, and reads in flight with the FILLING pages they fill.

    Each object is read once, however many lookups wait for it. Lookups take turns, one batch each; hints go last and
    leave half. A page fetched for a request is staged: READY and pinned until it is leased, its lookup is
    cancelled, or some time after the final report. Staged pages and pages being filled together are bounded.
    """

    def __init__(
        self,
        settings: HostSettings,
        index: HostIndex,
        staged: StagedPages,
        orders: StorageOrders,
        effects: list[HostEffect],
        counters: Counter[str],
    ) -> None:
        self._page_size = settings.page_size
        self._settings = settings.storage
        self._index = index
        self._orders = orders
        self._effects = effects
        self._counters = counters
        self._lookups: dict[RequestId, _Lookup] = {}
        self._changed: list[_Lookup] = []
        self._turns: dict[Urgency, OrderedDict[_Lookup, None]] = {urgency: OrderedDict() for urgency in Urgency}
        self._finds: dict[BatchId, _Lookup] = {}
        self._batches: dict[BatchId, _ReadBatch] = {}
        self._reads: dict[tuple[int, PageKey], _Read] = {}
        self._staged = staged
        self._num_filling = [0] * staged.num_groups
        self.is_allocating = True
        """False while a new arena owner must not hand out pages yet."""

    @property
    def num_lookups(self) -> int:
        """Lookups that are not final."""
        return len(self._lookups)

    @property
    def num_filling(self) -> int:
        """Pages that reads fill."""
        return sum(self._num_filling)

    # From the Scheduler ----------------------------------------------------------------------------------------

    def start(self, message: Lookup, now_s: float) -> None:
        """Find out where the pages of a chain are. A repeated request id replaces the earlier lookup."""
        self._forget(message.request_id)
        keys = split_keys(message.keys)
        lookup = _Lookup(
            request_id=message.request_id,
            urgency=message.urgency,
            group=message.group,
            keys=keys,
            sources=bytearray([PageSource.L1]) * len(keys),
            end=len(keys),
        )
        self._lookups[message.request_id] = lookup
        self._changed.append(lookup)
        for index in range(message.num_l1_pages, len(keys)):
            if self._index.find(message.group, keys[index]) is not None:
                lookup.sources[index] = PageSource.L2
            else:
                lookup.sources[index] = PageSource.PENDING
                lookup.missing.append(index)
        if lookup.missing:
            self._index.touch_chain(message.group, keys)
            self._find(lookup, now_s)

    def _find(self, lookup: _Lookup, now_s: float) -> None:
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

    def _skip_what_l3_lacks(self, lookup: _Lookup, now_s: float) -> None:
        """Do not ask again for what was missing a moment ago, nor for what comes after it."""
        for place, index in enumerate(lookup.missing):
            if self._orders.missing.has(lookup.group, lookup.keys[index], now_s):
                self._counters["l3_pages_known_missing"] += len(lookup.missing) - place
                self._fail(lookup, index, PageSource.NOT_FOUND)
                del lookup.missing[place:]
                return

    def cancel(self, request_id: RequestId) -> None:
        """Fetch no more for this request; nothing happens if its final report has been sent."""
        lookup = self._lookups.get(request_id)
        if lookup is None:
            return
        self._fail(lookup, lookup.sources.index(PageSource.PENDING), PageSource.CANCELLED)
        self._staged.release(lookup.group, lookup.keys)

    def cancel_all(self) -> None:
        """The Scheduler is gone: forget its lookups without a report."""
        for request_id in list(self._lookups):
            self._forget(request_id)
        self._staged.release_all()

    def retire(self) -> None:
        """L3 is not to be used any more: every lookup ends with what has come."""
        for lookup in list(self._lookups.values()):
            if PageSource.PENDING in lookup.sources:
                self._fail(lookup, lookup.sources.index(PageSource.PENDING), PageSource.CANCELLED)

    def _forget(self, request_id: RequestId) -> None:
        lookup = self._lookups.pop(request_id, None)
        if lookup is not None:
            self._fail(lookup, 0, PageSource.CANCELLED)
            self._changed = [other for other in self._changed if other is not lookup]

    # Orders ----------------------------------------------------------------------------------------------------

    def dispatch(self, now_s: float) -> None:
        """Order reads: one batch per lookup and turn, while not too many are in flight."""
        for urgency, turns in self._turns.items():
            max_batches = -(-self._settings.max_read_batches // (1 + urgency))
            while turns and not (self._orders.is_readable and self._num_current() >= max_batches):
                lookup = turns.popitem(last=False)[0]
                if lookup.wanted and not self._orders.is_readable:
                    self._fail(lookup, lookup.wanted[0], PageSource.IO_ERROR)
                elif lookup.wanted:
                    self._read_some(lookup, now_s)
                    if lookup.wanted:
                        turns[lookup] = None

    def _num_current(self) -> int:
        return sum(not batch.is_overdue for batch in self._batches.values())

    def _read_some(self, lookup: _Lookup, now_s: float) -> None:
        """Take wanted pages until a batch is full; those that came or are being read already cost nothing."""
        indices: list[int] = []
        page_ids: list[HostPageId] = []
        while lookup.wanted and len(indices) < self._settings.batch_pages:
            index = lookup.wanted.popleft()
            if self._join(lookup, index):
                continue
            page_id = None if self._is_hint_full(lookup) else self.allocate(lookup.group)
            if page_id is None:
                self._fail(lookup, index, PageSource.NO_HOST_PAGE)
                break
            indices.append(index)
            page_ids.append(page_id)
            lookup.num_read += 1
        if indices:
            self._send_read(lookup, indices, page_ids, now_s)

    def _is_hint_full(self, lookup: _Lookup) -> bool:
        """The open hints together bring no more than may be staged."""
        hints = (other for other in self._lookups.values() if other.urgency is Urgency.HINT)
        is_hint = lookup.urgency is Urgency.HINT
        return is_hint and sum(other.num_read for other in hints) >= self._staged.max_pages(lookup.group)

    def _join(self, lookup: _Lookup, index: int) -> bool:
        """Whether a page need not be read for this lookup: it is here, or somebody's read will bring it."""
        key = lookup.keys[index]
        read = self._reads.get((lookup.group, key))
        if self._index.find(lookup.group, key) is not None:
            self._arrive(lookup, index)
        elif read is not None:
            read.waiters.append((lookup, index))
        else:
            return False
        return True

    def allocate(self, group: int) -> HostPageId | None:
        """A page for a read, which counts as FILLING until `give_back` or the end of its batch; None if L2 is full."""
        if not self.is_allocating or self._num_filling[group] >= self._staged.num_left(group):
            return None
        page_id = self._index.allocate(group)
        if page_id is not None:
            self._num_filling[group] += 1
        return page_id

    def give_back(self, group: int, page_id: HostPageId) -> None:
        """End an allocation whose content nobody wants."""
        self._num_filling[group] -= 1
        self._index.free(page_id)

    def _send_read(self, lookup: _Lookup, indices: list[int], page_ids: list[HostPageId], now_s: float) -> None:
        keys = [lookup.keys[index] for index in indices]
        host_page_ids = int32_array(page_ids)
        generations = int32_array(self._index.generation(page_id) for page_id in page_ids)
        self._effects.append(SetGenerations(host_page_ids, generations))

        batch_id = self._orders.read(lookup.group, b"".join(keys), host_page_ids, now_s)
        self._batches[batch_id] = _ReadBatch(lookup.group, keys, page_ids)
        for key, index in zip(keys, indices, strict=True):
            self._reads[lookup.group, key] = _Read(batch_id, [(lookup, index)])

    # Answers ---------------------------------------------------------------------------------------------------

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the answer to a search or a batch of reads; others are ignored."""
        lookup = self._finds.pop(done.batch_id, None)
        if lookup is not None:
            self._finish_find(lookup, done, now_s)
        batch = self._batches.pop(done.batch_id, None)
        if batch is not None:
            self._finish_reads(done, batch, now_s)

    def _finish_find(self, lookup: _Lookup, done: ObjectsDone, now_s: float) -> None:
        for index, code in zip(lookup.missing, done.statuses, strict=True):
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(lookup.group, lookup.keys[index], now_s)
        if lookup.end <= lookup.missing[0]:
            return
        hits: list[int] = []
        for index, code in zip(lookup.missing, done.statuses, strict=True):
            key = lookup.keys[index]
            is_here = self._index.find(lookup.group, key) is not None or (lookup.group, key) in self._reads
            if code != ObjectStatus.OK and not is_here:
                self._fail(lookup, index, ObjectStatus(code).source_of_miss)
                break
            hits.append(index)
        if 0 < len(hits) * self._page_size < self._settings.min_tokens:
            self._fail(lookup, hits[0], PageSource.BELOW_MIN_TOKENS)
        else:
            lookup.wanted.extend(index for index in hits if not self._join(lookup, index))
            self._turns[lookup.urgency][lookup] = None

    def _finish_reads(self, done: ObjectsDone, batch: _ReadBatch, now_s: float) -> None:
        self._num_filling[batch.group] -= len(batch.keys)
        waiters = self._end_reads(done.batch_id, batch)
        outcomes = list(zip(batch.keys, batch.page_ids, map(ObjectStatus, done.statuses), waiters, strict=True))
        for key, page_id, status, waiting in outcomes:
            self._counters[f"l3_reads_{status.name.lower()}"] += 1
            if status is not ObjectStatus.OK:
                self._index.free(page_id)
                if status is ObjectStatus.MISSING or status.is_bad_object:
                    self._orders.missing.note(batch.group, key, now_s)
            elif self._index.publish(page_id, key) and any(
                lookup.urgency is Urgency.REQUEST and index < lookup.end for lookup, index in waiting
            ):
                self._staged.add(batch.group, key, now_s)
        for _, _, status, waiting in outcomes:
            for lookup, index in waiting:
                if status is ObjectStatus.OK:
                    self._arrive(lookup, index)
                elif status is ObjectStatus.CANCELLED and batch.is_cancelled:
                    self._want_again(lookup, index)
                else:
                    self._fail(lookup, index, status.source_of_miss)

    def _end_reads(self, batch_id: BatchId, batch: _ReadBatch) -> list[list[tuple[_Lookup, int]]]:
        """Forget a batch's reads; per object, who waits for it (nobody if another batch reads it by now)."""
        waiters: list[list[tuple[_Lookup, int]]] = []
        for key in batch.keys:
            read = self._reads.get((batch.group, key))
            if read is None or read.batch_id != batch_id:
                waiters.append([])
            else:
                waiters.append(read.waiters)
                del self._reads[batch.group, key]
        return waiters

    def _arrive(self, lookup: _Lookup, index: int) -> None:
        if index < lookup.end:
            lookup.sources[index] = PageSource.L3
            self._changed.append(lookup)

    def _want_again(self, lookup: _Lookup, index: int) -> None:
        """The read was cancelled for others before this lookup joined it."""
        if index < lookup.end:
            lookup.wanted = deque(sorted((*lookup.wanted, index)))
            self._turns[lookup.urgency][lookup] = None

    def _fail(self, lookup: _Lookup, index: int, source: PageSource) -> None:
        """Page `index` will not come, and for want of it none after it is of use."""
        if index >= lookup.end:
            return
        lookup.end = index
        lookup.sources[index:] = bytes([source]) * (len(lookup.keys) - index)
        while lookup.wanted and lookup.wanted[-1] >= index:
            lookup.wanted.pop()
        self._cancel_unwanted(lookup)
        self._changed.append(lookup)

    def _cancel_unwanted(self, lookup: _Lookup) -> None:
        """Cancel batches of reads for which nobody waits any more."""
        batch_ids = {
            read.batch_id
            for index in lookup.missing
            if index >= lookup.end and (read := self._reads.get((lookup.group, lookup.keys[index]))) is not None
        }
        for batch_id in batch_ids:
            batch = self._batches[batch_id]
            reads = [read for key in batch.keys if (read := self._reads.get((batch.group, key))) is not None]
            is_wanted = any(index < other.end for read in reads for other, index in read.waiters)
            if not is_wanted and not batch.is_cancelled:
                batch.is_cancelled = True
                self._orders.cancel(batch_id)

    # Trouble ---------------------------------------------------------------------------------------------------

    def give_up(self, batch_id: BatchId) -> None:
        """A batch is overdue: nobody waits for it any longer, but its pages stay FILLING until it is answered."""
        lookup = self._finds.pop(batch_id, None)
        if lookup is not None:
            self._fail(lookup, lookup.missing[0], PageSource.TIMED_OUT)
        batch = self._batches.get(batch_id)
        if batch is not None:
            batch.is_overdue = True
            for waiting in self._end_reads(batch_id, batch):
                for lookup, index in waiting:
                    self._fail(lookup, index, PageSource.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """The storage actor is gone: everything asked of it fails. The FILLING pages pass to the caller."""
        for lookup in self._finds.values():
            self._fail(lookup, lookup.missing[0], PageSource.IO_ERROR)
        self._finds.clear()
        reads, self._reads = self._reads, {}
        for read in reads.values():
            for lookup, index in read.waiters:
                self._fail(lookup, index, PageSource.IO_ERROR)
        held = [page_id for batch in self._batches.values() for page_id in batch.page_ids]
        self._batches.clear()
        self._num_filling = [0] * len(self._num_filling)
        return held

    # Reports ---------------------------------------------------------------------------------------------------

    def take_reports(self, now_s: float) -> list[LookupProgress]:
        """One report for each lookup that has changed; a final one ends it and touches its chain again."""
        changed, self._changed = dict.fromkeys(self._changed), []
        reports = []
        for lookup in changed:
            is_final = PageSource.PENDING not in lookup.sources
            sources = bytes(lookup.sources)
            reports.append(LookupProgress(request_id=lookup.request_id, sources=sources, is_final=is_final))
            if is_final:
                del self._lookups[lookup.request_id]
                self._staged.release(lookup.group, lookup.keys[lookup.end :])
                self._index.touch_chain(lookup.group, lookup.keys)
                self._staged.renew(lookup.group, lookup.keys, now_s)
        return reports
