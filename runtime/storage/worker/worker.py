"""Carries out HostMemory's orders on a backend: moves bytes, and fills and verifies headers."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, assert_never

from raydix.errors import ConfigError
from raydix.ids import SEVERAL_USERS, BatchId, PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, split_keys
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)
from raydix.runtime.messages.retention import RetainObjects
from raydix.runtime.storage.backend import ObjectName, ObjectRef, StorageBackend
from raydix.runtime.storage.last_error import ErrorLog, LastError, join_errors
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker.arrivals import Arrivals
from raydix.runtime.storage.worker.lane import Lane
from raydix.runtime.storage.worker.object_header import fill_headers, verify_objects
from raydix.runtime.storage.worker.order_counts import Operation, OrderCounts
from raydix.runtime.tiers.host_arena import HostArena

logger = logging.getLogger(__name__)

_SLICE_BYTES = 16 << 20
"""The least bytes of a slice of a batch; between slices, cancellation and the deadline are looked
at. Libraries are fast with many objects at a time.
"""
_TIDY_EVERY_S = 0.25
ANSWER_S = 15.0
"""The time for a server to answer at all; longer than a connection of any backend may take."""
_NOBODYS = ObjectName(PageKey(bytes(KEY_BYTES)), 0)
"""A name that no page has, to see whether anybody answers."""

Order = AskExists | ReadObjects | WriteObjects | DeleteObjects
"""What is answered."""
Told = Order | CancelBatch | RetainObjects
"""All that HostMemory says."""
Transfer = ReadObjects | WriteObjects

_OPERATIONS: Mapping[type[Order], Operation] = {
    AskExists: Operation.EXISTS,
    ReadObjects: Operation.READ,
    WriteObjects: Operation.WRITE,
    DeleteObjects: Operation.CLEAR,
}


class Ordered(NamedTuple):
    """An order, and when it came."""

    order: Order
    at_s: float


class StorageWorker:
    """Owns: the threads that use the backend, and which batches are under way.

    Every order is answered by exactly one `ObjectsDone`, handed to `on_done` in one of those
    threads; no page of the batch is touched after that. `on_done` must not raise.

    The threads read orders in turns, and whoever has read one carries it out and answers it: no
    batch is handed from thread to thread while the disk keeps up, and none wakes a second one.
    There is one more of them than batches may be under way, so that one is always there to read,
    cancellations above all. Of questions
    whether objects exist one is under way at a time, but it does not wait behind reads; nor does
    anything wait behind what the backend does while nobody waits for it, in a thread of its own.
    """

    def __init__(
        self,
        backend: StorageBackend,
        arena: HostArena,
        namespace: Namespace,
        on_done: Callable[[ObjectsDone], None],
        *,
        num_transfers: int = 4,
        clock: Callable[[], float] = time.monotonic,
        tidy_every_s: float = _TIDY_EVERY_S,
    ) -> None:
        """The backend must use the same `clock`. Opens it: raises ConfigError if it cannot work.

        num_transfers: batches that may be moved at a time.
        """
        self._backend = backend
        self._arena = arena
        self._namespace = namespace
        self._on_done = on_done
        self._clock = clock

        self._active: set[BatchId] = set()
        self._cancelled: set[BatchId] = set()
        self._questions: Lane[Ordered] = Lane(1)
        self._transfers: Lane[Ordered] = Lane(num_transfers)
        self._num_threads = 1 + num_transfers + 1
        self._idle = threading.Condition()
        self._counts = OrderCounts()
        self._errors = ErrorLog()

        self._arrivals = Arrivals()
        # Before any thread is started: a backend that cannot work leaves nothing running.
        try:
            backend.open(arena.buffer, namespace)
        except BaseException:
            self._arrivals.close()
            raise
        self._threads: list[threading.Thread] = []
        self._reading = threading.Lock()
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="storage-answer")
        self._is_closing = threading.Event()
        self._tidy_thread = threading.Thread(target=self._tidy, args=[tidy_every_s], daemon=True)
        self._tidy_thread.start()

    def serve(
        self,
        orders: Iterable[Told | None],
        descriptor: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Start to carry out what `orders` brings, until it ends; returns at once. Called once.

        `orders` is read by one thread at a time, and may wait. None: whoever ordered is gone; what
        is under way is cancelled, and has ended when the next one is asked for, and hints are
        forgotten. A batch that is done cannot be cancelled.

        descriptor: called by the thread that has read, it tells where there is something to read
        once the next order has come, or the end; None: it has come, or nobody can tell, and a
        thread waits in `orders`. It must not raise.
        """
        reading = self._admit(orders)
        self._arrivals.watch(None)
        for index in range(self._num_threads):
            thread = threading.Thread(
                target=self._work,
                args=[reading, descriptor],
                name=f"storage_{index}",
                daemon=True,
            )
            thread.start()
            # Only one that runs can be waited for.
            self._threads.append(thread)

    def require_answer(self, timeout_s: float) -> None:
        """Ask the backend one question, to see whether its server answers.

        Raises ConfigError that says why it does not. A question without an answer stays open.
        """
        asking = self._asker.submit(self._backend.batch_exists, [_NOBODYS])
        error: object = f"it has not answered within {timeout_s:g} s"
        try:
            [status] = asking.result(timeout_s)
            if status in (ObjectStatus.OK, ObjectStatus.MISSING):
                return
            last = self._backend.last_error()
            error = f"{status.name.lower()}" if last is None else last.text
        except TimeoutError:
            pass
        except Exception as raised:  # noqa: BLE001  whatever a backend raises, its server is no use
            error = repr(raised)
        raise ConfigError(
            f"cache.l3: the store does not answer: {error}. Start its service or correct cache.l3; "
            "--lazy (cache.l3.lazy: true) goes on without it until it answers."
        )

    def quiesce(self) -> None:
        """Cancel everything and wait for its `on_done`: then no page of the arena is touched."""
        with self._idle:
            self._cancelled |= self._active
            self._idle.wait_for(lambda: not self._active)

    @property
    def backend(self) -> StorageBackend:
        """The backend that carries out the orders."""
        return self._backend

    def stats(self) -> dict[str, Any]:
        """The backend's figures, what was ordered and has become of it, and what is under way."""
        with self._idle:
            own = self._counts.figures() | {"active_batches": len(self._active)}
        return self._backend.stats() | own

    def last_error(self) -> LastError | None:
        """The last error of the backend or of its use."""
        return join_errors(self._backend.last_error(), self._errors.last)

    def close(self) -> None:
        """Quiesce, end the threads, close the backend. The orders must have ended, or be ending."""
        self.quiesce()
        self._arrivals.end()
        for thread in self._threads:
            thread.join()
        self._arrivals.close()
        self._asker.shutdown()
        self._is_closing.set()
        self._tidy_thread.join()
        self._backend.close()

    def _tidy(self, every_s: float) -> None:
        while not self._is_closing.wait(every_s):
            try:
                while self._backend.tidy() and not self._is_closing.is_set():
                    pass
            except BaseException:  # the top of a thread, as in `_run`
                logger.exception("the storage backend failed while nobody waited for it")

    def _work(self, reading: Iterator[Ordered], descriptor: Callable[[], int | None]) -> None:
        while True:
            self._arrivals.wait()
            ordered = self._next(reading, descriptor)
            if ordered is None:
                return
            while ordered is not None:
                self._run(*ordered)
                ordered = self._end(ordered.order)

    def _next(
        self, reading: Iterator[Ordered], descriptor: Callable[[], int | None]
    ) -> Ordered | None:
        """The next order for this thread, which lets another read on. None: the orders' end."""
        with self._reading:
            ordered: Ordered | None = None
            try:
                ordered = next(reading, None)
            finally:
                # Also if reading has failed: nobody will wait for what does not come.
                if ordered is None:
                    self._arrivals.end()
            if ordered is not None:
                self._arrivals.watch(descriptor())
        return ordered

    def _admit(self, orders: Iterable[Told | None]) -> Iterator[Ordered]:
        """The orders that whoever reads them is to carry out; others wait for one to end."""
        for message in orders:
            if message is None:
                self.quiesce()
                # Nobody knows any more whether they hold, nor how much is kept for whom.
                self._retain(RetainObjects(user=SEVERAL_USERS))
                continue
            if isinstance(message, RetainObjects):
                self._retain(message)
                continue

            with self._idle:
                if isinstance(message, CancelBatch):
                    if message.batch_id in self._active:
                        self._cancelled.add(message.batch_id)
                    continue
                self._active.add(message.batch_id)
                ordered = Ordered(message, self._clock())
                is_admitted = self._lane(message).admit(ordered)
            if is_admitted:
                yield ordered

    def _retain(self, hint: RetainObjects) -> None:
        names = [ObjectName(key, hint.group) for key in split_keys(hint.keys)]
        try:
            self._backend.retain(names, hint.user, hint.retention)
        except BaseException as error:  # a hint is worth no thread
            logger.exception("the storage backend failed on a hint")
            self._errors.note(repr(error))

    def _lane(self, order: Order) -> Lane[Ordered]:
        return self._questions if isinstance(order, AskExists) else self._transfers

    def _end(self, order: Order) -> Ordered | None:
        """Note that an order is answered. Returns one that has waited for that, to carry it out."""
        # Only now: who has waited for quiet must not hear of an earlier batch afterwards.
        with self._idle:
            self._active.discard(order.batch_id)
            self._cancelled.discard(order.batch_id)
            self._idle.notify_all()
            return self._lane(order).replace_ended()

    def _run(self, order: Order, ordered_s: float) -> None:
        started_s = self._clock()
        object_bytes = 0
        try:
            if isinstance(order, Transfer):
                object_bytes = self._arena.geometry.object_bytes(order.group)
            statuses = bytes(self._execute(order, ordered_s))
        except BaseException as error:
            # The top of a thread: an order without an answer would hold its pages for ever. What a
            # library in Rust raises when it panics is no Exception.
            logger.exception("the storage backend failed on batch %d", order.batch_id)
            self._errors.note(repr(error))
            num_objects = 1 if isinstance(order, DeleteObjects) else len(split_keys(order.keys))
            statuses = bytes([ObjectStatus.IO_ERROR] * num_objects)

        ended_s = self._clock()
        operation = _OPERATIONS[type(order)]
        with self._idle:
            self._counts.add(operation, statuses, object_bytes, ended_s - started_s)
        done = ObjectsDone(batch_id=order.batch_id, statuses=statuses, seconds=ended_s - ordered_s)
        try:
            self._on_done(done)
        except BaseException:  # the top of a thread, which others would wait for
            logger.exception("nobody could be told of batch %d", order.batch_id)

    def _execute(self, order: Order, ordered_s: float) -> list[ObjectStatus]:
        match order:
            case AskExists():
                names = [ObjectName(key, order.group) for key in split_keys(order.keys)]
                if order.batch_id in self._cancelled:
                    return [ObjectStatus.CANCELLED] * len(names)
                if self._clock() >= ordered_s + order.deadline_s:
                    return [ObjectStatus.TIMED_OUT] * len(names)
                return _one_of_each(self._backend.batch_exists(names), len(names))
            case ReadObjects() | WriteObjects():
                return self._transfer(order, ordered_s + order.deadline_s)
            case DeleteObjects():
                return _one_of_each([self._backend.clear()], 1)
            case _:
                assert_never(order)

    def _transfer(self, order: Transfer, deadline_s: float) -> list[ObjectStatus]:
        object_bytes = self._arena.geometry.object_bytes(order.group)
        refs = self._refs(order, object_bytes)
        slice_objects = -(-_SLICE_BYTES // object_bytes)
        move = self._read if isinstance(order, ReadObjects) else self._write

        statuses: list[ObjectStatus] = []
        for start in range(0, len(refs), slice_objects):
            part = refs[start : start + slice_objects]
            if order.batch_id in self._cancelled:
                statuses += [ObjectStatus.CANCELLED] * len(part)
            elif self._clock() >= deadline_s:
                statuses += [ObjectStatus.TIMED_OUT] * len(part)
            else:
                statuses += move(part, deadline_s)
        return statuses

    def _refs(self, order: Transfer, object_bytes: int) -> list[ObjectRef]:
        group, buffer = order.group, self._arena.buffer
        offsets = self._arena.geometry.page_offsets(order.host_page_ids, group)
        new = tuple.__new__  # half of the time of the named tuples' own constructors
        return [
            new(
                ObjectRef,
                (new(ObjectName, (key, group)), buffer[offset : offset + object_bytes], offset),
            )
            for key, offset in zip(split_keys(order.keys), offsets, strict=True)
        ]

    def _read(self, refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        told = _one_of_each(self._backend.batch_get_into(refs, deadline_s), len(refs))
        statuses = verify_objects(refs, told, self._namespace)
        if any(statuses):
            bad = [
                ref.name for ref, status in zip(refs, statuses, strict=True) if status.is_bad_object
            ]
            # The next write of that page replaces it; kept, it would fail every reader.
            self._backend.delete(bad)
        return statuses

    def _write(self, refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        fill_headers(refs, self._namespace)
        return _one_of_each(self._backend.batch_put_from(refs, deadline_s), len(refs))


def _one_of_each(statuses: list[ObjectStatus], num_objects: int) -> list[ObjectStatus]:
    """The statuses that a backend returned; raises ValueError unless there is one per object.

    A backend may be anybody's code, and HostMemory takes the worker at its word.
    """
    if len(statuses) != num_objects or set(map(type, statuses)) - {ObjectStatus}:
        raise ValueError(
            f"the backend returned {statuses!r} for {num_objects} objects; expected a list with "
            f"one ObjectStatus for each"
        )
    return statuses
