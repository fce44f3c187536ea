"""Batches that wait for a thread of the worker."""

import threading

from raydix.runtime.messages.host import CancelBatch, ObjectsDone, ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.fake import FakeBackend
from tests.runtime.storage.stores import Bench

OK, CANCELLED = ObjectStatus.OK, ObjectStatus.CANCELLED
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
