"""The turns of the worker's threads."""

import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raydix.ids import BatchId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    ObjectsDone,
    ObjectStatus,
    WriteObjects,
)
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.worker.worker import Order, StorageWorker
from raydix.runtime.testing.order_queue import OrderQueue
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, Bench, make_key

OK, CANCELLED, IO_ERROR = ObjectStatus.OK, ObjectStatus.CANCELLED, ObjectStatus.IO_ERROR
NUM_TRANSFERS = 2
"""The number of transfers that a `Bench`'s worker has under way at a time."""


def test_batch_that_is_cancelled_before_its_turn_moves_nothing() -> None:
    bench = Bench(FakeBackend())
    bench.write([1, 2])
    entered, leave = threading.Semaphore(0), threading.Event()
    get = bench.backend.batch_get_into
    num_read = 0

    def slow_get(refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        nonlocal num_read
        num_read += len(refs)
        entered.release()
        assert leave.wait(30)
        return get(refs, deadline_s)

    bench.backend.batch_get_into = slow_get  # type: ignore[method-assign, assignment]
    for page in range(NUM_TRANSFERS):
        bench.order(bench.read_order([1], first_page=page))
    assert all(entered.acquire(timeout=30) for _ in range(NUM_TRANSFERS))
    order = bench.read_order([2] * 2, first_page=NUM_TRANSFERS)
    bench.order(order)
    bench.order(CancelBatch(batch_id=order.batch_id))
    leave.set()
    assert sorted(bench.wait() for _ in range(NUM_TRANSFERS + 1)) == [[OK]] * NUM_TRANSFERS + [
        [CANCELLED] * 2
    ]
    assert num_read == NUM_TRANSFERS
    bench.close()


def test_questions_that_wait_are_not_asked_before_it_is_quiet() -> None:
    bench = Bench(FakeBackend())
    entered, leave = threading.Event(), threading.Event()
    num_asked: list[int] = []

    def slow_exists(names: list[ObjectName]) -> list[ObjectStatus]:
        num_asked.append(len(names))
        entered.set()
        assert leave.wait(30)
        return [OK] * len(names)

    bench.backend.batch_exists = slow_exists  # type: ignore[method-assign, assignment]
    for _ in range(50):
        bench.order(AskExists(batch_id=bench.batch_id(), keys=make_key(1)))
    assert entered.wait(30)
    quiet = threading.Thread(target=bench.worker.quiesce)
    quiet.start()
    while len(bench.worker._cancelled) < 50:
        quiet.join(0.001)
    leave.set()
    quiet.join(30)
    assert [bench.wait() for _ in range(50)] == [[OK]] + [[CANCELLED]] * 49
    assert num_asked == [1]
    bench.close()


class Panic(BaseException):
    """What a library in Rust raises: no Exception."""


def test_panic_of_a_library_is_an_answer_and_ends_no_thread() -> None:
    bench = Bench(FakeBackend())

    def panic(*_: object) -> list[ObjectStatus]:
        raise Panic("called `Option::unwrap()` on a `None` value")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("batch_exists", "batch_get_into", "batch_put_from", "clear"):
            patch.setattr(bench.backend, method, panic)
        for _ in range(NUM_TRANSFERS + 1):
            assert bench.exists([1]) == [IO_ERROR]
            assert bench.write([1]) == bench.read([1]) == bench.clear() == [IO_ERROR]
    error = bench.worker.last_error()
    assert error is not None
    assert "unwrap" in error.text
    assert bench.write([1]) == bench.read([1]) == [OK]
    bench.close()


def test_worker_that_is_quiet_has_nothing_left_to_say() -> None:
    bench = Bench(FakeBackend())
    num_active: list[int | float] = []
    tell = bench.worker._on_done

    def tell_and_count(done: ObjectsDone) -> None:
        num_active.append(bench.worker.stats()["active_batches"])
        tell(done)

    bench.worker._on_done = tell_and_count
    bench.write([1])
    bench.worker.quiesce()
    assert num_active == [1], "a batch counts as under way until its answer is out"
    bench.close()


def test_batch_is_carried_out_and_answered_by_the_thread_that_has_read_it() -> None:
    read_by: list[int] = []
    answered_by: queue.SimpleQueue[int] = queue.SimpleQueue()
    orders = OrderQueue()

    def reading() -> Iterator[Order | CancelBatch]:
        for order in orders:
            read_by.append(threading.get_ident())
            yield order

    arena = HostArena.create(LAYOUT, LAYOUT.host_page_bytes(0))
    worker = StorageWorker(
        FakeBackend(), arena, NAMESPACE, lambda _: answered_by.put(threading.get_ident())
    )
    worker.serve(reading())
    for index in range(20):
        orders.put(AskExists(batch_id=BatchId(2 * index), keys=make_key(1)))
        assert answered_by.get(timeout=30) == read_by[-1]
        page = int32_array([0])
        orders.put(
            WriteObjects(batch_id=BatchId(2 * index + 1), keys=make_key(1), host_page_ids=page)
        )
        assert answered_by.get(timeout=30) == read_by[-1]
        # Else the same thread might go on with what another has read.
        worker.quiesce()
    orders.end()
    worker.close()
    arena.close()


def test_nobody_waits_in_the_orders_while_transfers_are_free_and_none_has_come() -> None:
    backend = FakeBackend(faults=Faults(latency_s=math.inf))
    arena = HostArena.create(LAYOUT, 4 * LAYOUT.host_page_bytes(0))
    answers: queue.SimpleQueue[ObjectsDone] = queue.SimpleQueue()
    worker = StorageWorker(backend, arena, NAMESPACE, answers.put, num_transfers=4)
    orders = OrderQueue()
    num_for_nothing = 0

    def reading() -> Iterator[Order | CancelBatch]:
        nonlocal num_for_nothing
        for order in orders:
            yield order
            num_for_nothing += not orders.has_come

    worker.serve(reading(), orders.descriptor)
    for page in range(4):
        pages = int32_array([page])
        orders.put(WriteObjects(batch_id=BatchId(page), keys=make_key(page), host_page_ids=pages))
        orders.wait_read()
    backend.set_faults(Faults())
    assert sorted(answers.get(timeout=30).batch_id for _ in range(4)) == [0, 1, 2, 3]
    orders.end()
    worker.close()
    orders.close()
    arena.close()
    assert num_for_nothing == 0


def test_next_that_orders_is_heard_when_nothing_of_the_former_is_under_way() -> None:
    backend = FakeBackend(faults=Faults(latency_s=math.inf))
    num_active: list[int] = []
    answers: queue.SimpleQueue[ObjectsDone] = queue.SimpleQueue()
    arena = HostArena.create(LAYOUT, 16 * LAYOUT.host_page_bytes(0))
    worker = StorageWorker(backend, arena, NAMESPACE, answers.put, num_transfers=2)

    def order(batch: int) -> WriteObjects:
        pages = int32_array([batch])
        return WriteObjects(batch_id=BatchId(batch), keys=make_key(batch), host_page_ids=pages)

    def orders() -> Iterator[Order | CancelBatch | None]:
        yield from map(order, range(8))
        threading.Timer(0.05, lambda: backend.set_faults(Faults())).start()
        yield None
        num_active.append(worker.stats()["active_batches"])
        yield order(3)

    worker.serve(orders())
    told = [answers.get(timeout=30) for _ in range(9)]
    worker.close()
    arena.close()
    assert num_active == [0]
    assert told[-1].batch_id == 3
    assert bytes(told[-1].statuses) == bytes([OK]), "its id is that of one that was cancelled"
    statuses = {int(done.batch_id): ObjectStatus(done.statuses[0]) for done in told[:-1]}
    assert statuses == dict.fromkeys(range(2), OK) | dict.fromkeys(range(2, 8), CANCELLED)


def test_order_for_a_group_that_is_none_is_answered_and_ends_no_thread() -> None:
    bench = Bench(FakeBackend())
    for _ in range(2 * NUM_TRANSFERS):
        bench.order(replace(bench.write_order([1]), group=7))
        assert bench.wait() == [IO_ERROR]
    assert bench.write([1]) == bench.read([1]) == [OK]
    bench.worker.quiesce()
    bench.close()


def test_answer_that_cannot_be_told_ends_no_thread() -> None:
    bench = Bench(FakeBackend())
    tell = bench.worker._on_done

    def fail(done: ObjectsDone) -> None:
        raise MemoryError

    bench.worker._on_done = fail
    for _ in range(2 * NUM_TRANSFERS):
        bench.order(bench.write_order([1]))
    bench.worker.quiesce()
    bench.worker._on_done = tell
    assert bench.read([1]) == [OK]
    bench.close()


def test_orders_that_fail_end_all_threads() -> None:
    answers: queue.SimpleQueue[ObjectsDone] = queue.SimpleQueue()
    arena = HostArena.create(LAYOUT, LAYOUT.host_page_bytes(0))
    worker = StorageWorker(FakeBackend(), arena, NAMESPACE, answers.put)

    def orders() -> Iterator[Order]:
        yield AskExists(batch_id=BatchId(1), keys=make_key(1))
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        worker.serve(orders())
        assert answers.get(timeout=30).batch_id == 1
        for thread in worker._threads:
            thread.join(30)
            assert not thread.is_alive()
    worker.close()
    arena.close()
