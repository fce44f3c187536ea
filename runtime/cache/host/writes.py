"""Writes from L2 to L3: they follow commits and are retried, but not for ever."""

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.cache.host.events import HostEffect, StorageFlushed
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, WriteObjects


class DropReason(StrEnum):
    """Why a page was not written to L3."""

    QUEUE_FULL = "queue_full"
    EVICTED = "evicted"
    FULL = "full"
    FAILED = "failed"
    DETACHED = "detached"
    FLUSH = "flush"


@dataclass(slots=True)
class _Write:
    group: int
    key: PageKey
    num_attempts: int = 0


class HostWrites:
    """Owns: names to be written to L3, pinned pages being written, and a removal of all objects.

    A name waits or is written once at a time. A page that L2 drops while it waits is not written.
    Repairs, which are pages that L3 was found to lack, wait apart: they go after new pages and take
    no room from them.
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
        self._repairs: deque[_Write] = deque()
        self._names: set[tuple[int, PageKey]] = set()
        """Of what waits or is being written."""
        self._in_flight: dict[BatchId, list[tuple[_Write, HostPageId]]] = {}
        self._is_flush_wanted = False
        self._flush_id: BatchId | None = None

    @property
    def num_pending(self) -> int:
        """Pages waiting or being written."""
        return len(self._queue) + len(self._repairs) + self.num_pinned

    @property
    def num_pinned(self) -> int:
        """Pages being written."""
        return sum(map(len, self._in_flight.values()))

    @property
    def is_ready(self) -> bool:
        """Only the storage actor's absence or the circuit breaker holds writes back."""
        has_room = self._num_current() < self._settings.max_write_batches
        return bool(self._queue or self._repairs) and has_room and not self._is_flush_wanted

    @property
    def wants_repairs(self) -> bool:
        """So few of them wait that L3 should be asked about the next batch, if there is one."""
        settings = self._settings
        enough = min(
            settings.max_queued_writes, 2 * settings.max_write_batches * settings.batch_pages
        )
        return len(self._repairs) + settings.batch_pages <= max(enough, settings.batch_pages)

    def add(self, group: int, key: PageKey) -> None:
        """L2 has a new page: write it when its turn comes, if there is L3."""
        self._add(self._queue, group, key)

    def add_repair(self, group: int, key: PageKey) -> None:
        """L2 holds a page that L3 lacks: write it when no new page waits."""
        self._add(self._repairs, group, key)

    def _add(self, queue: deque[_Write], group: int, key: PageKey) -> None:
        if not self._orders.is_in_use or (group, key) in self._names:
            return
        if len(queue) >= self._settings.max_queued_writes:
            self._counters[f"l3_writes_dropped_{DropReason.QUEUE_FULL}"] += 1
            return
        self._names.add((group, key))
        queue.append(_Write(group, key))

    def flush(self) -> None:
        """Remove every object once the writes in flight are answered; what waits is not written."""
        self._drop_queue(DropReason.FLUSH)
        self._is_flush_wanted = True

    def dispatch(self, now_s: float) -> None:
        """Send what may be sent."""
        if self._is_flush_wanted and self._orders.pid is None:
            self._end_flush(ObjectStatus.IO_ERROR)
        if self._is_flush_wanted:
            if self._flush_id is None and self._num_current() == 0:
                self._flush_id = self._orders.clear(now_s)
            return
        while self.is_ready and self._orders.is_writable(now_s):
            batch = self._take_batch()
            if batch:
                self._send(batch, now_s)

    def _num_current(self) -> int:
        return sum(not self._orders.is_overdue(batch_id) for batch_id in self._in_flight)

    def _take_batch(self) -> list[tuple[_Write, HostPageId]]:
        batch: list[tuple[_Write, HostPageId]] = []
        max_pages = 1 if self._orders.is_write_probe else self._settings.batch_pages
        while (queue := self._queue or self._repairs) and len(batch) < max_pages:
            write = queue[0]
            if batch and write.group != batch[0][0].group:
                break
            queue.popleft()

            page_id = self._index.find(write.group, write.key)
            if page_id is None:
                self._drop(write, DropReason.EVICTED)
                continue
            self._index.pin(page_id)
            batch.append((write, page_id))
        return batch

    def _drop(self, write: _Write, reason: DropReason) -> None:
        self._names.remove((write.group, write.key))
        self._counters[f"l3_writes_dropped_{reason}"] += 1

    def _drop_queue(self, reason: DropReason) -> None:
        for queue in (self._queue, self._repairs):
            while queue:
                self._drop(queue.popleft(), reason)

    def _send(self, batch: list[tuple[_Write, HostPageId]], now_s: float) -> None:
        def make_order(batch_id: BatchId, deadline_s: float) -> WriteObjects:
            return WriteObjects(
                batch_id=batch_id,
                keys=b"".join(write.key for write, _ in batch),
                host_page_ids=int32_array(page_id for _, page_id in batch),
                group=batch[0][0].group,
                deadline_s=deadline_s,
            )

        self._in_flight[self._orders.write(make_order, now_s)] = batch

    def finish(self, done: ObjectsDone) -> bool:
        """Take the answer to a batch of writes or the removal of all. False: it is not ours."""
        if done.batch_id == self._flush_id:
            self._end_flush(ObjectStatus(done.statuses[0]))
            return True

        batch = self._in_flight.pop(done.batch_id, None)
        if batch is None:
            return False

        self._index.unpin(page_id for _, page_id in batch)
        for (write, _), code in zip(batch, done.statuses, strict=True):
            status = ObjectStatus(code)
            if status is ObjectStatus.OK:
                self._names.remove((write.group, write.key))
                self._orders.missing.forget(write.group, write.key)
                self._counters["l3_pages_written"] += 1
            elif status is ObjectStatus.FULL:
                self._drop(write, DropReason.FULL)
            else:
                self._retry(write)
        return True

    def _retry(self, write: _Write) -> None:
        write.num_attempts += 1
        if not self._orders.is_in_use:
            self._drop(write, DropReason.DETACHED)
        elif write.num_attempts >= self._settings.max_write_attempts or self._is_flush_wanted:
            self._drop(write, DropReason.FAILED)
        else:
            self._counters["l3_writes_retried"] += 1
            self._queue.append(write)

    def retire(self) -> None:
        """L3 is not to be used any more: what waits is dropped."""
        self._drop_queue(DropReason.DETACHED)
        if self._is_flush_wanted and self._flush_id is None:
            self._end_flush(ObjectStatus.CANCELLED)

    def give_up_flush(self, batch_id: BatchId) -> None:
        """If this overdue batch is the removal of all objects, report that it timed out."""
        if batch_id == self._flush_id:
            self._end_flush(ObjectStatus.TIMED_OUT)

    def lose(self) -> list[HostPageId]:
        """The storage actor is gone: queue again what it was writing.

        Returns these pages, which the caller unpins when the actor has ended.
        """
        held: list[HostPageId] = []
        for batch in self._in_flight.values():
            held.extend(page_id for _, page_id in batch)
            self._queue.extendleft(write for write, _ in reversed(batch))
        self._in_flight.clear()
        if self._flush_id is not None:
            self._end_flush(ObjectStatus.IO_ERROR)
        return held

    def _end_flush(self, status: ObjectStatus) -> None:
        self._is_flush_wanted = False
        self._flush_id = None
        self._effects.append(StorageFlushed(status))

    def check(self) -> None:
        """Raises AccountingError unless every name on record waits or is being written, once."""
        writes = [
            *self._queue,
            *self._repairs,
            *(write for batch in self._in_flight.values() for write, _ in batch),
        ]
        if (
            len(writes) != len(self._names)
            or {(write.group, write.key) for write in writes} != self._names
        ):
            raise AccountingError(
                f"{len(writes)} pages wait or are being written to L3; {len(self._names)} on record"
            )
