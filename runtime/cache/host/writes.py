"""Writes from L2 to L3: whatever L3 lacks is written when its turn comes, as long as L2 has it."""

from collections import Counter
from enum import StrEnum
from math import inf

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.cache.host.events import HostEffect, StorageFlushed
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import HostPageState
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.unwritten import Turn
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, WriteObjects

_FIRST_REST_S = 1.0
"""Seconds for which nothing is written once L3 is full; each further rest is twice as long."""
_RETRY_PIECE = 256
"""The number of pages whose writes are tried again with one event."""


class DropReason(StrEnum):
    """Why a page was not written to L3; what was FULL or FAILED is tried again after a while."""

    EVICTED = "evicted"
    FULL = "full"
    FAILED = "failed"
    DETACHED = "detached"
    FLUSH = "flush"


class HostWrites:
    """Owns: pinned pages being written, when L3 is offered more after it was full, and a removal of
    all objects.

    Nothing that L3 lacks is forgotten while L2 has it (`UnwrittenPages`). A page whose write fails
    is tried `max_write_attempts` times, and again each `put_off_s`. While L3 is full, one page at a
    time finds out whether it still is.
    """

    def __init__(
        self,
        settings: StorageSettings,
        index: HostIndex,
        orders: StorageOrders,
        effects: list[HostEffect],
        counters: Counter[str],
    ) -> None:
        self._settings = settings
        self._index = index
        self._unwritten = index.unwritten
        self._orders = orders
        self._effects = effects
        self._counters = counters

        self._in_flight: dict[BatchId, list[HostPageId]] = {}
        self._rest_s = 0.0
        """Seconds for which L3 is left alone since it was full; 0: it takes pages."""
        self._rests_until_s = -inf
        self._is_flush_wanted = False
        self._flush_id: BatchId | None = None
        self._written: list[HostPageId] = []
        """Pages that L3 has got since the last `take_written`."""

    @property
    def num_pending(self) -> int:
        """The number of pages that are to be written without a rest, or are being written."""
        num_waiting = 0 if self._rest_s else self._unwritten.num_waiting
        return num_waiting + self.num_pinned

    @property
    def num_put_off(self) -> int:
        """The number of pages that L3 did not take and is offered again after a while."""
        num_waiting = self._unwritten.num_waiting if self._rest_s else 0
        return num_waiting + self._unwritten.num_put_off

    @property
    def num_pinned(self) -> int:
        """The number of pages that are being written."""
        return sum(map(len, self._in_flight.values()))

    @property
    def _is_ready(self) -> bool:
        """Whether only a rest, the storage actor's absence or the circuit breaker delays writes."""
        # After most events nothing waits, or there is no room for more.
        if self._is_flush_wanted or not self._unwritten.num_waiting:
            return False
        max_batches = 1 if self._rest_s else self._settings.max_write_batches
        return self._num_current() < max_batches

    @property
    def next_due_s(self) -> float | None:
        """The time at which time alone lets L3 be offered a page; None: never."""
        retry_s = self._unwritten.next_retry_s
        held_until_s = self._held_until_s() if self._is_ready else None
        times = [time_s for time_s in (retry_s, held_until_s) if time_s is not None]
        return min(times, default=None)

    def _held_until_s(self) -> float | None:
        """The time at which the breaker and a rest have both ended; None: not by time alone."""
        until_s = self._orders.write_retry_at_s
        is_held = until_s is not None or not self._orders.is_write_probe
        if not self._orders.is_readable or not is_held:
            return None
        until_s = max(self._rests_until_s, -inf if until_s is None else until_s)
        return None if until_s == -inf else until_s

    def add(self, page_id: HostPageId, turn: Turn) -> bool:
        """Add a READY page, if there is an L3 to write it to. Returns False if it was known."""
        return self._orders.is_in_use and self._unwritten.add(page_id, turn)

    def flush(self) -> None:
        """Remove every object once the writes in flight are answered; what waits is not written."""
        self._drop_all(DropReason.FLUSH)
        self._is_flush_wanted = True

    def dispatch(self, now_s: float) -> None:
        """Send what may be sent."""
        self._count(DropReason.EVICTED, self._unwritten.take_num_lost())
        self._unwritten.retry(now_s, _RETRY_PIECE)

        if self._is_flush_wanted and self._orders.pid is None:
            self._end_flush(ObjectStatus.IO_ERROR)
        if self._is_flush_wanted:
            if self._flush_id is None and self._num_current() == 0:
                self._flush_id = self._orders.clear(now_s)
            return
        while self._is_ready and now_s >= self._rests_until_s and self._orders.is_writable(now_s):
            self._send(*self._take_batch(), now_s)

    def _num_current(self) -> int:
        return sum(not self._orders.is_overdue(batch_id) for batch_id in self._in_flight)

    def _take_batch(self) -> tuple[int, bytes, list[HostPageId]]:
        """The next pages of one group, pinned, with the group and their keys; there are some."""
        is_probe = self._rest_s > 0 or self._orders.is_write_probe
        max_pages = 1
        group: int | None = None
        keys: list[PageKey] = []
        pages: list[HostPageId] = []
        while len(pages) < max_pages and (page_id := self._unwritten.next_page()) is not None:
            name = self._index.name(page_id)
            assert name is not None, "a page that is to be written is READY"
            if group is not None and name[0] != group:
                break
            group = name[0]
            if not is_probe:
                max_pages = self._orders.batch_pages[group]
            self._index.pin(page_id)
            self._unwritten.start(page_id)
            keys.append(name[1])
            pages.append(page_id)
        assert group is not None
        return group, b"".join(keys), pages

    def _send(self, group: int, keys: bytes, pages: list[HostPageId], now_s: float) -> None:
        def make_order(batch_id: BatchId, deadline_s: float) -> WriteObjects:
            return WriteObjects(
                batch_id=batch_id,
                keys=keys,
                host_page_ids=int32_array(pages),
                group=group,
                deadline_s=deadline_s,
            )

        self._in_flight[self._orders.write(make_order, now_s)] = pages

    def finish(self, done: ObjectsDone, now_s: float) -> bool:
        """Take the answer to writes or to the removal of all; False if it is to another order."""
        if done.batch_id == self._flush_id:
            self._end_flush(ObjectStatus(done.statuses[0]))
            return True

        pages = self._in_flight.pop(done.batch_id, None)
        if pages is None:
            return False

        self._index.unpin(pages)
        # What is put back goes before all others, so the first page of a chain comes last.
        for page_id, code in reversed(list(zip(pages, done.statuses, strict=True))):
            self._settle(page_id, ObjectStatus(code), now_s)
        if ObjectStatus.FULL in done.statuses:
            self._rest(now_s)
        elif ObjectStatus.OK in done.statuses:
            self._rest_s, self._rests_until_s = 0.0, -inf
        return True

    def _settle(self, page_id: HostPageId, status: ObjectStatus, now_s: float) -> None:
        if status is ObjectStatus.OK:
            self._unwritten.finish(page_id)
            self._written.append(page_id)
            self._counters["l3_pages_written"] += 1
            if (name := self._index.name(page_id)) is not None:
                self._orders.missing.forget(*name)
        elif not self._orders.is_in_use:
            self._unwritten.finish(page_id)
            self._count(DropReason.DETACHED, 1)
        elif self._is_flush_wanted:
            self._unwritten.finish(page_id)
            self._count(DropReason.FLUSH, 1)
        elif status is ObjectStatus.FULL:
            self._put_off(page_id, DropReason.FULL, now_s)
        elif self._unwritten.count_failure(page_id) >= self._settings.max_write_attempts:
            self._put_off(page_id, DropReason.FAILED, now_s)
        else:
            self._unwritten.put_back(page_id)
            self._counters["l3_writes_retried"] += 1

    def take_written(self) -> list[HostPageId]:
        """Take the pages that L3 has got since the last call; some may be gone from L2."""
        written, self._written = self._written, []
        return written

    def _put_off(self, page_id: HostPageId, reason: DropReason, now_s: float) -> None:
        self._unwritten.put_off(page_id, now_s + self._settings.put_off_s)
        self._count(reason, 1)

    def _rest(self, now_s: float) -> None:
        """Leave L3 alone for a while, as it is full, and then offer it one page."""
        if now_s >= self._rests_until_s:
            self._rest_s = min(max(_FIRST_REST_S, 2 * self._rest_s), self._settings.put_off_s)
            self._rests_until_s = now_s + self._rest_s

    def _drop_all(self, reason: DropReason) -> None:
        self._count(reason, self._unwritten.clear())

    def _count(self, reason: DropReason, num_pages: int) -> None:
        if num_pages:
            self._counters[f"l3_writes_dropped_{reason}"] += num_pages

    def trust_anew(self) -> None:
        """Offer pages again: a storage actor has attached, whose backend may have room."""
        self._rest_s, self._rests_until_s = 0.0, -inf

    def retire(self) -> None:
        """Drop what waits, as L3 is not to be used any more."""
        self._drop_all(DropReason.DETACHED)
        if self._is_flush_wanted and self._flush_id is None:
            self._end_flush(ObjectStatus.CANCELLED)

    def give_up_flush(self, batch_id: BatchId) -> None:
        """Report that an overdue batch timed out, if it is the removal of all objects."""
        if batch_id == self._flush_id:
            self._end_flush(ObjectStatus.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """Put back what the storage actor, which is gone, was writing: it is to be written first.

        Returns these pages, which the caller unpins when the actor has ended.
        """
        held = [page_id for pages in self._in_flight.values() for page_id in pages]
        for page_id in reversed(held):
            self._unwritten.put_back(page_id)
        self._in_flight.clear()
        if self._flush_id is not None:
            self._end_flush(ObjectStatus.IO_ERROR)
        return held

    def _end_flush(self, status: ObjectStatus) -> None:
        self._is_flush_wanted = False
        self._flush_id = None
        self._effects.append(StorageFlushed(status))

    def check(self) -> None:
        """Raise AccountingError unless pages to be written are READY and each is written once."""
        listed = list(self._unwritten.listed())
        stray: list[HostPageId] = []
        if not self._index.are_all(listed, HostPageState.READY):
            stray = [page_id for page_id in listed if self._index.name(page_id) is None]
        writing = [page_id for pages in self._in_flight.values() for page_id in pages]
        if stray or len(set(writing)) != len(writing) or set(writing) != self._unwritten.writing():
            raise AccountingError(
                f"{len(listed)} pages wait for L3, of which {stray} are not READY; {writing} are "
                "being written"
            )
