"""Reads from one place into L2, joined by name, and the host pages that they fill."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raydix.ids import BatchId, ConnectionId, HostPageId, PageKey
from raydix.runtime.cache.host.events import HostEffect, SetGenerations
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, Urgency

Waiter = tuple[OpenLookup, int]
"""A lookup, and the place of a page in its chain."""

_CROWD = 64
"""The number of waiters at which a page is crowded: each page of a batch may have as many."""


@dataclass(slots=True, eq=False)
class _Batch:
    group: int
    keys: list[PageKey]
    page_ids: list[HostPageId]
    is_cancelled: bool = False
    is_overdue: bool = False


@dataclass(slots=True, eq=False)
class _Read:
    batch_id: BatchId
    waiters: list[Waiter]


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What became of one page's read, and who waits for it."""

    group: int
    status: ObjectStatus
    is_unwanted: bool
    """Whether the read was cancelled, when nobody waited for it."""
    waiters: Sequence[Waiter]


class HostReads:
    """Owns: reads in flight and the FILLING pages they fill.

    Each object is read once, however many wait for it. A page that was fetched for a request is
    staged. Staged pages and pages being filled together are bounded.
    """

    def __init__(
        self,
        index: HostIndex,
        staged: StagedPages,
        orders: StorageOrders,
        effects: list[HostEffect],
        counters: Counter[str],
        *,
        label: str,
    ) -> None:
        """Start without reads. `label`: what they are counted under."""
        self._index = index
        self._staged = staged
        self._orders = orders
        self.batch_pages = orders.batch_pages
        """The most pages of one read, per KV group."""
        self._effects = effects
        self._counters = counters

        self._batches: dict[BatchId, _Batch] = {}
        self._reads: dict[tuple[int, PageKey], _Read] = {}
        self._label = label
        self._num_filling = [0] * index.num_groups
        self._is_allocating = False

    @property
    def num_filling(self) -> int:
        """The number of pages that reads fill."""
        return sum(self._num_filling)

    @property
    def num_current(self) -> int:
        """The number of batches in flight that are not overdue."""
        return sum(not batch.is_overdue for batch in self._batches.values())

    def is_reading(self, group: int, key: PageKey) -> bool:
        """Whether a read in flight will bring this page."""
        return (group, key) in self._reads

    def is_crowded(self, group: int, key: PageKey) -> bool:
        """Whether a read will bring this page for `_CROWD` waiters or more."""
        read = self._reads.get((group, key))
        return read is not None and len(read.waiters) >= _CROWD

    def join(self, group: int, key: PageKey, waiter: Waiter) -> bool:
        """Wait for the read that brings this page. Returns False if there is none."""
        read = self._reads.get((group, key))
        if read is not None:
            read.waiters.append(waiter)
        return read is not None

    def allow_allocation(self) -> None:
        """Allow `allocate`: no copy that an earlier owner of the arena has ordered is in flight."""
        self._is_allocating = True

    def allocate(self, group: int) -> HostPageId | None:
        """A page for a read; None if L2 is full.

        It counts as FILLING until `give_back` or the end of its batch.
        """
        if not self._is_allocating or self._staged.num_left(group) <= 0:
            return None
        page_id = self._index.allocate(group)
        if page_id is not None:
            self._count_filling(group, 1)
        return page_id

    def _count_filling(self, group: int, change: int) -> None:
        self._num_filling[group] += change
        self._staged.count_filling(group, change)

    def give_back(self, group: int, page_id: HostPageId) -> None:
        """End an allocation whose content nobody wants."""
        self._count_filling(group, -1)
        self._index.free(page_id)

    def start(
        self,
        lookup: OpenLookup,
        group: int,
        indices: Sequence[int],
        page_ids: list[HostPageId],
        now_s: float,
    ) -> None:
        """Read a group's pages of a chain, which nobody reads yet, into allocated pages."""
        keys = [lookup.keys[index] for index in indices]
        host_page_ids = int32_array(page_ids)
        generations = int32_array(self._index.generation(page_id) for page_id in page_ids)
        self._effects.append(SetGenerations(host_page_ids, generations))

        batch_id = self._orders.read(group, b"".join(keys), host_page_ids, now_s)
        self._batches[batch_id] = _Batch(group, keys, page_ids)
        for key, index in zip(keys, indices, strict=True):
            self._reads[group, key] = _Read(batch_id, [(lookup, index)])

    def cancel_unwanted(self, group: int, keys: Iterable[PageKey]) -> None:
        """Cancel those batches that read these keys and for which nobody waits any more."""
        batch_ids = {
            read.batch_id for key in keys if (read := self._reads.get((group, key))) is not None
        }

        for batch_id in batch_ids:
            self._cancel_unless_wanted(batch_id, self._batches[batch_id])

    def forget(self, connection: ConnectionId) -> None:
        """Let a Scheduler that is gone wait for nothing; cancel what nobody else waits for."""
        for read in self._reads.values():
            read.waiters[:] = [
                waiter for waiter in read.waiters if waiter[0].connection != connection
            ]
        for batch_id, batch in self._batches.items():
            if not batch.is_overdue:
                self._cancel_unless_wanted(batch_id, batch)

    def _cancel_unless_wanted(self, batch_id: BatchId, batch: _Batch) -> None:
        if batch.is_cancelled:
            return
        group = batch.group
        reads = [read for key in batch.keys if (read := self._reads.get((group, key))) is not None]

        # The newest first: where all lookups are stopped, the oldest are the first to go.
        is_wanted = any(
            lookup.is_waiting_for(group, index)
            for read in reads
            for lookup, index in reversed(read.waiters)
        )
        if not is_wanted:
            batch.is_cancelled = True
            self._orders.cancel(batch_id)

    def finish(self, done: ObjectsDone, now_s: float) -> list[ReadOutcome]:
        """Take the answer to a batch: what was read is READY, and staged for requests that wait.

        Answers to other batches are ignored.
        """
        batch = self._batches.pop(done.batch_id, None)
        if batch is None:
            return []

        self._count_filling(batch.group, -len(batch.keys))
        all_waiters = self._end_reads(done.batch_id, batch)
        outcomes = []
        for key, page_id, code, waiters in zip(
            batch.keys, batch.page_ids, done.statuses, all_waiters, strict=True
        ):
            status = ObjectStatus(code)
            self._counters[f"{self._label}_reads_{status.label}"] += 1
            if status is ObjectStatus.OK:
                self._publish(page_id, batch.group, key, waiters)
            else:
                self._index.free(page_id)

            if status is ObjectStatus.MISSING or status.is_bad_object:
                self._orders.missing.note(batch.group, key, now_s)

            is_unwanted = status is ObjectStatus.CANCELLED and batch.is_cancelled
            outcomes.append(ReadOutcome(batch.group, status, is_unwanted, waiters))
        return outcomes

    def _publish(
        self, page_id: HostPageId, group: int, key: PageKey, waiters: list[Waiter]
    ) -> None:
        if not self._index.publish(page_id, key):
            return
        for lookup, index in waiters:
            if lookup.urgency is Urgency.REQUEST and lookup.is_waiting_for(group, index):
                self._staged.add(lookup.name, group, key)

    def _end_reads(self, batch_id: BatchId, batch: _Batch) -> list[list[Waiter]]:
        """Forget a batch's reads. Returns who waits for each object that no later batch reads."""
        waiters: list[list[Waiter]] = []
        for key in batch.keys:
            read = self._reads.get((batch.group, key))
            if read is None or read.batch_id != batch_id:
                waiters.append([])
            else:
                waiters.append(read.waiters)
                del self._reads[batch.group, key]
        return waiters

    def give_up(self, batch_id: BatchId) -> list[ReadOutcome]:
        """Give up an overdue batch: its pages stay FILLING until it is answered."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return []
        batch.is_overdue = True
        return [
            ReadOutcome(batch.group, ObjectStatus.TIMED_OUT, False, waiters)
            for waiters in self._end_reads(batch_id, batch)
        ]

    def lose(self) -> list[HostPageId]:
        """Forget all reads, as the storage actor is gone and nobody waits any longer.

        Returns the FILLING pages, which are the caller's now.
        """
        held = [page_id for batch in self._batches.values() for page_id in batch.page_ids]
        self._reads.clear()
        self._batches.clear()
        for group, num_filling in enumerate(self._num_filling):
            self._count_filling(group, -num_filling)
        return held
