"""Writes from L2 to L3: they follow commits, are retried within bounds, then dropped and counted."""

from collections import Counter, deque
from dataclasses import dataclass

from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.cache.host_events import HostEffect, StorageFlushed, StorageSettings
from raydix.runtime.cache.host_index import HostIndex
from raydix.runtime.cache.storage_orders import StorageOrders
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import DeleteObjects, ObjectsDone, ObjectStatus, WriteObjects


@dataclass(slots=True)
class _Write:
    group: int
    key: PageKey
    page_id: HostPageId
    generation: int
    num_attempts: int = 0


class HostWrites:
    """Owns: pages that wait to be written to L3, those being written (pinned), and a pending removal of all objects.

    A page that L2 drops while it waits is not written.
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
        self._orders = orders
        self._effects = effects
        self._counters = counters
        self._queue: deque[_Write] = deque()
        self._in_flight: dict[BatchId, list[_Write]] = {}
        self._is_flush_wanted = False
        self._flush_id: BatchId | None = None

    @property
    def num_pending(self) -> int:
        """Pages waiting or being written."""
        return len(self._queue) + self.num_pinned

    @property
    def num_pinned(self) -> int:
        """Pages being written."""
        return sum(map(len, self._in_flight.values()))

    @property
    def is_ready(self) -> bool:
        """Only the storage actor's absence or the circuit breaker holds writes back."""
        has_room = self._num_current() < self._settings.max_write_batches
        return bool(self._queue) and has_room and not self._is_flush_wanted

    def add(self, group: int, key: PageKey, page_id: HostPageId) -> None:
        """A committed page is READY: write it when its turn comes, if there is L3."""
        if not self._orders.is_in_use:
            return
        if len(self._queue) >= self._settings.max_queued_writes:
            self._counters["l3_writes_dropped_queue_full"] += 1
            return
        self._queue.append(_Write(group, key, page_id, self._index.generation(page_id)))

    def flush(self) -> None:
        """Remove every object once the writes in flight are answered; what waits is not written."""
        self._counters["l3_writes_dropped_flush"] += len(self._queue)
        self._queue.clear()
        self._is_flush_wanted = True

    def dispatch(self, now_s: float) -> None:
        """Send what may be sent."""
        if self._is_flush_wanted and self._orders.pid is None:
            self._end_flush(ObjectStatus.IO_ERROR)
        if self._is_flush_wanted:
            if self._flush_id is None and self._num_current() == 0:
                self._flush_id = self._orders.send(lambda batch_id, _: DeleteObjects(batch_id=batch_id), now_s)
            return
        while self.is_ready and self._orders.is_admitting(now_s):
            batch = self._take_batch()
            if batch:
                self._send(batch, now_s)

    def _num_current(self) -> int:
        return sum(not self._orders.is_overdue(batch_id) for batch_id in self._in_flight)

    def _take_batch(self) -> list[_Write]:
        batch: list[_Write] = []
        while self._queue and len(batch) < self._settings.batch_pages:
            write = self._queue[0]
            if batch and write.group != batch[0].group:
                break
            self._queue.popleft()
            if (
                self._index.find(write.group, write.key) != write.page_id
                or self._index.generation(write.page_id) != write.generation
            ):
                self._counters["l3_writes_dropped_evicted"] += 1
                continue
            self._index.pin(write.page_id)
            batch.append(write)
        return batch

    def _send(self, batch: list[_Write], now_s: float) -> None:
        def make_order(batch_id: BatchId, deadline_s: float) -> WriteObjects:
            return WriteObjects(
                batch_id=batch_id,
                keys=b"".join(write.key for write in batch),
                host_page_ids=int32_array(write.page_id for write in batch),
                group=batch[0].group,
                deadline_s=deadline_s,
            )

        self._in_flight[self._orders.send(make_order, now_s)] = batch

    def finish(self, done: ObjectsDone) -> bool:
        """Take the answer to a batch of writes, or to the removal of all. False: it is none of ours."""
        if done.batch_id == self._flush_id:
            self._end_flush(ObjectStatus(done.statuses[0]))
            return True
        batch = self._in_flight.pop(done.batch_id, None)
        if batch is None:
            return False
        self._index.unpin(write.page_id for write in batch)
        for write, code in zip(batch, done.statuses, strict=True):
            status = ObjectStatus(code)
            if status is ObjectStatus.OK:
                self._counters["l3_pages_written"] += 1
            elif status is ObjectStatus.FULL:
                self._counters["l3_writes_dropped_full"] += 1
            else:
                self._retry(write)
        return True

    def _retry(self, write: _Write) -> None:
        write.num_attempts += 1
        if not self._orders.is_in_use:
            self._counters["l3_writes_dropped_detached"] += 1
        elif write.num_attempts >= self._settings.max_write_attempts or self._is_flush_wanted:
            self._counters["l3_writes_dropped_failed"] += 1
        else:
            self._counters["l3_writes_retried"] += 1
            self._queue.append(write)

    def retire(self) -> None:
        """L3 is not to be used any more: what waits is dropped."""
        self._counters["l3_writes_dropped_detached"] += len(self._queue)
        self._queue.clear()
        if self._is_flush_wanted and self._flush_id is None:
            self._end_flush(ObjectStatus.CANCELLED)

    def give_up_flush(self, batch_id: BatchId) -> None:
        """If this overdue batch is the removal of all objects, report that it timed out."""
        if batch_id == self._flush_id:
            self._end_flush(ObjectStatus.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """The storage actor is gone: queue again what it was writing. The caller unpins the pages when it has ended."""
        held: list[HostPageId] = []
        for batch in self._in_flight.values():
            held.extend(write.page_id for write in batch)
            self._queue.extendleft(reversed(batch))
        self._in_flight.clear()
        if self._flush_id is not None:
            self._end_flush(ObjectStatus.IO_ERROR)
        return held

    def _end_flush(self, status: ObjectStatus) -> None:
        self._is_flush_wanted = False
        self._flush_id = None
        self._effects.append(StorageFlushed(status))
