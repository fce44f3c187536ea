"""Carries out HostMemory's orders on a backend: moves bytes, fills and verifies headers, answers per object."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from raydix.ids import BatchId, HostPageId
from raydix.runtime.cache.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.messages.host import (
    CancelBatch,
    DeleteObjects,
    FindObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
    split_keys,
)
from raydix.runtime.storage.backend import ObjectName, ObjectRef, StorageBackend
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.object_header import ObjectIdentity, fill_header, verify_object
from raydix.runtime.tiers.host_arena import HostArena

logger = logging.getLogger(__name__)

_SLICE_BYTES = 16 << 20
"""Between slices of a batch, of this size or a little more, cancellation and deadline are looked at. Libraries are
fast with many objects at a time."""

Order = FindObjects | ReadObjects | WriteObjects | DeleteObjects
Transfer = ReadObjects | WriteObjects


class StorageWorker:
    """Owns: the threads that use the backend, and which batches are under way.

    Every order is answered by exactly one `ObjectsDone`, handed to `on_done` in one of those threads; no page of the
    batch is touched after that. `on_done` must not raise. Searches have a thread of their own, so that they do not
    wait behind reads.
    """

    def __init__(
        self,
        backend: StorageBackend,
        arena: HostArena,
        namespace: Namespace,
        on_done: Callable[[ObjectsDone], None],
        num_threads: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The backend must use the same `clock`. Opens it: raises ConfigError if it cannot work."""
        self._backend = backend
        self._arena = arena
        self._namespace = namespace
        self._on_done = on_done
        self._clock = clock
        self._active: set[BatchId] = set()
        self._cancelled: set[BatchId] = set()
        self._idle = threading.Condition()
        backend.open(arena.buffer, namespace)
        self._search_pool = ThreadPoolExecutor(1, thread_name_prefix="storage-find")
        self._transfer_pool = ThreadPoolExecutor(num_threads, thread_name_prefix="storage")

    def submit(self, message: Order | CancelBatch) -> None:
        """Take an order, or cancel one; returns at once. Cancelling what is done or unknown changes nothing."""
        if isinstance(message, CancelBatch):
            with self._idle:
                if message.batch_id in self._active:
                    self._cancelled.add(message.batch_id)
            return
        with self._idle:
            self._active.add(message.batch_id)
        pool = self._search_pool if isinstance(message, FindObjects) else self._transfer_pool
        pool.submit(self._run, message, self._clock())

    def quiesce(self) -> None:
        """Cancel everything and wait until it is answered: no page of the arena is touched any more."""
        with self._idle:
            self._cancelled |= self._active
            self._idle.wait_for(lambda: not self._active)

    def stats(self) -> dict[str, int]:
        """Of the backend, and how many batches are under way."""
        with self._idle:
            num_active = len(self._active)
        return self._backend.stats() | {"active_batches": num_active}

    def close(self) -> None:
        """Quiesce, end the threads, close the backend."""
        self.quiesce()
        self._search_pool.shutdown()
        self._transfer_pool.shutdown()
        self._backend.close()

    def _run(self, order: Order, started_s: float) -> None:
        try:
            statuses = self._execute(order, started_s)
        except Exception:  # the top of a thread: an order without an answer would hold its pages for ever
            logger.exception("the storage backend failed on batch %d", order.batch_id)
            num_objects = 1 if isinstance(order, DeleteObjects) else len(split_keys(order.keys))
            statuses = [ObjectStatus.IO_ERROR] * num_objects
        with self._idle:
            self._active.discard(order.batch_id)
            self._cancelled.discard(order.batch_id)
            self._idle.notify_all()
        self._on_done(ObjectsDone(batch_id=order.batch_id, statuses=bytes(statuses), seconds=self._clock() - started_s))

    def _execute(self, order: Order, started_s: float) -> list[ObjectStatus]:
        match order:
            case FindObjects():
                names = [ObjectName(key, order.group) for key in split_keys(order.keys)]
                if self._clock() >= started_s + order.deadline_s:
                    return [ObjectStatus.TIMED_OUT] * len(names)
                return self._backend.batch_exists(names)
            case ReadObjects() | WriteObjects():
                return self._transfer(order, started_s + order.deadline_s)
            case DeleteObjects():
                return [self._backend.clear()]
            case _:
                assert_never(order)

    def _transfer(self, order: Transfer, deadline_s: float) -> list[ObjectStatus]:
        geometry, buffer = self._arena.geometry, self._arena.buffer
        object_bytes = OBJECT_HEADER_BYTES + geometry.payload_bytes[order.group]
        refs = []
        for key, page_id in zip(split_keys(order.keys), order.host_page_ids.tolist(), strict=True):
            offset = geometry.page_offset(HostPageId(page_id), order.group)
            refs.append(ObjectRef(ObjectName(key, order.group), buffer[offset : offset + object_bytes], offset))
        move = self._read if isinstance(order, ReadObjects) else self._write
        statuses: list[ObjectStatus] = []
        slice_objects = -(-_SLICE_BYTES // object_bytes)
        for start in range(0, len(refs), slice_objects):
            part = refs[start : start + slice_objects]
            if order.batch_id in self._cancelled:
                statuses += [ObjectStatus.CANCELLED] * len(part)
            elif self._clock() >= deadline_s:
                statuses += [ObjectStatus.TIMED_OUT] * len(part)
            else:
                statuses += move(part, deadline_s)
        return statuses

    def _identity(self, name: ObjectName) -> ObjectIdentity:
        return ObjectIdentity(self._namespace.digest, name.group, name.key, self._namespace.codec)

    def _read(self, refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        statuses = self._backend.batch_get_into(refs, deadline_s)
        verified = [
            verify_object(ref.page, self._identity(ref.name)) if status is ObjectStatus.OK else status
            for ref, status in zip(refs, statuses, strict=True)
        ]
        bad = [ref.name for ref, status in zip(refs, verified, strict=True) if status.is_bad_object]
        if bad:
            # The next write of that page replaces it; kept, it would fail every reader.
            self._backend.delete(bad)
        return verified

    def _write(self, refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        for ref in refs:
            fill_header(ref.page, self._identity(ref.name))
        return self._backend.batch_put_from(refs, deadline_s)
