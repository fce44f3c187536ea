"""Batches that wait for a thread of the worker."""

import threading

import pytest

from raydix.runtime.messages.host import AskExists, CancelBatch, ObjectsDone, ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.fake import FakeBackend
from tests.runtime.storage.stores import Bench, make_key

OK, CANCELLED, IO_ERROR = ObjectStatus.OK, ObjectStatus.CANCELLED, ObjectStatus.IO_ERROR
NUM_THREADS = 2
"""Of a `Bench`'s worker."""


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
    for page in range(NUM_THREADS):
        bench.worker.submit(bench.read_order([1], first_page=page))
    assert all(entered.acquire(timeout=30) for _ in range(NUM_THREADS))
    order = bench.read_order([2] * 2, first_page=NUM_THREADS)
    bench.worker.submit(order)
    bench.worker.submit(CancelBatch(batch_id=order.batch_id))
    leave.set()
    assert sorted(bench.wait() for _ in range(NUM_THREADS + 1)) == [[OK]] * NUM_THREADS + [
        [CANCELLED] * 2
    ]
    assert num_read == NUM_THREADS
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
        bench.worker.submit(AskExists(batch_id=bench.batch_id(), keys=make_key(1)))
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
        for _ in range(NUM_THREADS + 1):
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
