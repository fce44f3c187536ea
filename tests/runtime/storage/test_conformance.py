"""What every L3 backend must do, as the worker sees it, on all that this machine can run."""

import gc
import os
import threading

import pytest

from raydix.ids import HostPageId
from raydix.runtime.messages.host import CancelBatch, ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends.corruption import Corruption, corrupt
from raydix.runtime.storage.namespace import make_namespace
from tests.runtime.storage.backends.bad_objects import FOUND_AS
from tests.runtime.storage.stores import (
    LAYOUT,
    OBJECT_BYTES,
    Bench,
    Store,
    content,
    layout_of,
    make_key,
    make_object,
)

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING
_NUM_USES = 6


def test_written_pages_come_back(bench: Bench) -> None:
    names = list(range(20))
    assert bench.exists(names) == [MISSING] * 20
    assert bench.write(names) == [OK] * 20
    assert bench.exists(names) == [OK] * 20
    assert bench.read(names) == [OK] * 20


@pytest.mark.parametrize("payload_bytes", [4 << 10, 64 << 10, 1 << 20, 8 << 20])
def test_pages_of_any_size_come_back(store: Store, payload_bytes: int) -> None:
    bench = Bench(store.make(), layout=layout_of(payload_bytes), num_pages=6)
    assert bench.write([1, 2, 3]) == [OK] * 3
    assert bench.read([3, 9, 1], first_page=3) == [OK, MISSING, OK]
    bench.close()


def test_hole_anywhere_in_a_batch_shifts_nothing(bench: Bench) -> None:
    for pattern in range(2**5):
        names = [32 * 5 + 5 * pattern + place for place in range(5)]
        there = [pattern >> place & 1 == 1 for place in range(5)]
        bench.write([name for name, is_there in zip(names, there, strict=True) if is_there])
        expected = [OK if is_there else MISSING for is_there in there]
        assert bench.exists(names) == expected
        assert bench.read(names) == expected


def test_duplicate_names_in_a_batch_are_each_answered(bench: Bench) -> None:
    assert bench.write([1, 2, 1]) == [OK] * 3
    assert bench.read([2, 1, 1, 9, 2]) == [OK, OK, OK, MISSING, OK]


def test_second_write_keeps_the_first_bytes(bench: Bench, store: Store) -> None:
    bench.write([1])
    first = store.raw(1)
    order = bench.write_order([1])
    bench.arena.payload(HostPageId(0), 0)[:4] = b"oops"
    bench.order(order)
    assert bench.wait() == [OK]
    assert store.raw(1) == first
    assert bench.read([1]) == [OK]


@pytest.mark.part
@pytest.mark.parametrize("kind", Corruption)
def test_bad_object_is_found_and_removed(bench: Bench, store: Store, kind: Corruption) -> None:
    bench.write([1, 2, 3])
    good = store.raw(2)
    assert good is not None
    store.set_raw(2, corrupt(good, kind))
    assert bench.read([1, 2, 3]) == [OK, FOUND_AS[kind], OK]
    assert bench.read([1, 2, 3]) == [OK, MISSING, OK]
    assert bench.write([2]) == [OK]
    assert bench.read([1, 2, 3]) == [OK] * 3


def test_two_objects_in_each_others_place_are_found(bench: Bench, store: Store) -> None:
    bench.write([1, 2])
    first, second = store.raw(1), store.raw(2)
    assert first is not None
    assert second is not None
    store.set_raw(1, second)
    store.set_raw(2, first)
    assert bench.read([1, 2]) == [ObjectStatus.WRONG_KEY] * 2


def test_other_namespace_finds_nothing(store: Store) -> None:
    backend = store.make()
    bench = Bench(backend)
    bench.write([1])
    bench.close()

    other = Bench(backend, make_namespace(b"model", "v2", LAYOUT))
    assert other.exists([1]) == [MISSING]
    assert other.read([1]) == [MISSING]
    other.write([1, 2])
    assert other.clear() == [OK]
    assert other.exists([1, 2]) == [MISSING] * 2
    other.close()

    again = Bench(backend)
    assert again.read([1]) == [OK]
    again.close()


def test_closing_leaves_no_descriptor_open(store: Store) -> None:
    def use() -> None:
        bench = Bench(store.make())
        bench.write([1, 2])
        bench.read([1, 9])
        bench.close()

    def count() -> int:
        # A mapping has a descriptor of its own, for as long as there are views of it.
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def num_left() -> int:
        num_open = count()
        for _ in range(_NUM_USES):
            use()
        return count() - num_open

    use()  # what libraries keep for the process
    gc.collect()
    gc.freeze()  # or each count would look through all modules of this process
    # Threads of a library may close a connection a little later, and others of this process, Ray's
    # among them, open some at any time. What leaks does so every time.
    num_left_each_time = [num_left() for _ in range(3)]
    gc.unfreeze()
    assert min(num_left_each_time) < _NUM_USES


def test_delete_answers_per_name(bench: Bench, store: Store) -> None:
    bench.write([1, 2])
    names = [ObjectName(make_key(name), 0) for name in (1, 9, 2)]
    backend = bench.backend
    assert [info and info.size_bytes for info in backend.query(names)] == [
        OBJECT_BYTES,
        None,
        OBJECT_BYTES,
    ]
    assert backend.delete(names) == [OK, MISSING, OK]
    assert bench.read([1, 2]) == [MISSING] * 2


def test_delete_under_read_gives_the_page_or_a_miss(bench: Bench, store: Store) -> None:
    names = [ObjectName(make_key(name), 0) for name in range(16)]
    backend = bench.backend
    for _ in range(10):
        bench.write(list(range(16)))
        bench.order(bench.read_order(list(range(16))))
        backend.delete(names)
        for name, status in enumerate(bench.wait()):
            assert status in (OK, MISSING)
            if status is OK:
                assert bytes(bench.arena.payload(HostPageId(32 + name), 0)) == content(name)
    store.check(backend)


def test_concurrent_writers_of_one_key_leave_one_good_object(bench: Bench, store: Store) -> None:
    backend = bench.backend
    page = bench.arena.page(HostPageId(0), 0)
    page[:] = make_object(7).page
    ref = ObjectRef(
        ObjectName(make_key(7), 0), page, bench.arena.geometry.page_offset(HostPageId(0), 0)
    )
    start = threading.Barrier(4)
    statuses: list[ObjectStatus] = []

    def write() -> None:
        start.wait()
        for _ in range(20):
            statuses.extend(backend.batch_put_from([ref], 1e18))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) == {OK}
    assert bench.read([7]) == [OK]
    if store.is_bounded:
        assert bench.worker.stats()["bytes"] == OBJECT_BYTES
    store.check(backend)


def test_every_order_is_counted_by_operation_and_result(bench: Bench) -> None:
    bench.write([1, 2])
    bench.exists([1, 9])
    bench.read([1, 9, 2])
    bench.clear()

    stats = bench.worker.stats()
    counted = {
        name: stats[name]
        for name in stats
        if name.partition("_")[0] in ("exists", "read", "write", "clear")
    }
    numbers = {name: n for name, n in counted.items() if not name.endswith(("_seconds", "_times"))}
    assert numbers == {
        "write_batches": 1,
        "write_objects_ok": 2,
        "write_bytes": 2 * OBJECT_BYTES,
        "exists_batches": 1,
        "exists_objects_ok": 1,
        "exists_objects_missing": 1,
        "read_batches": 1,
        "read_objects_ok": 2,
        "read_objects_missing": 1,
        "read_bytes": 2 * OBJECT_BYTES,
        "clear_batches": 1,
        "clear_objects_ok": 1,
    }
    assert all(
        stats[f"{operation}_seconds"] > 0 for operation in ("exists", "read", "write", "clear")
    )


def test_past_its_deadline_a_batch_is_timed_out(bench: Bench) -> None:
    bench.write([1, 2])
    bench.order(bench.read_order([1, 2], deadline_s=-1.0))
    assert bench.wait() == [ObjectStatus.TIMED_OUT] * 2


def test_cancelled_batch_is_still_answered(store: Store) -> None:
    bench = Bench(store.make(), layout=layout_of(2 << 20), num_pages=13)
    bench.write([1])
    entered, leave = threading.Event(), threading.Event()
    backend = bench.backend
    get = backend.batch_get_into

    def slow_get(refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        entered.set()
        assert leave.wait(30)
        return get(refs, deadline_s)

    backend.batch_get_into = slow_get  # type: ignore[method-assign]
    order = bench.read_order([1] * 12, first_page=1)
    bench.order(order)
    assert entered.wait(30)
    bench.order(CancelBatch(batch_id=order.batch_id))
    bench.order(CancelBatch(batch_id=bench.batch_id()))
    leave.set()
    assert bench.wait() == [OK] * 8 + [ObjectStatus.CANCELLED] * 4
    bench.worker.quiesce()
    assert bench.worker.stats()["active_batches"] == 0
    bench.close()


def test_backend_that_raises_answers_io_error(bench: Bench) -> None:
    def broken(*_: object) -> list[ObjectStatus]:
        raise RuntimeError("out of order")

    bench.backend.batch_get_into = broken  # type: ignore[method-assign]
    bench.backend.clear = broken  # type: ignore[method-assign, assignment]
    assert bench.read([1, 2]) == [ObjectStatus.IO_ERROR] * 2
    assert bench.clear() == [ObjectStatus.IO_ERROR]


def test_concurrent_writers_of_different_bytes_leave_one_of_them_whole(
    bench: Bench, store: Store
) -> None:
    """Two ranks may round the same page in two ways; a reader gets the one or the other."""
    payloads = [bytes([value]) * LAYOUT.payload_bytes(0) for value in (1, 2)]
    refs = []
    for place, payload in enumerate(payloads):
        page = bench.arena.page(HostPageId(place), 0)
        page[:] = make_object(7, payload).page
        offset = bench.arena.geometry.page_offset(HostPageId(place), 0)
        refs.append(ObjectRef(ObjectName(make_key(7), 0), page, offset))
    for _ in range(10):
        start = threading.Barrier(2)

        def write(ref: ObjectRef, start: threading.Barrier = start) -> None:
            start.wait()
            bench.backend.batch_put_from([ref], 1e18)

        threads = [threading.Thread(target=write, args=[ref]) for ref in refs]
        for thread in threads:
            thread.start()
        bench.order(bench.read_order([7]))
        [status] = bench.wait()
        assert status in (OK, MISSING)
        for thread in threads:
            thread.join()
        bench.order(bench.read_order([7]))
        assert bench.wait() == [OK]
        assert bytes(bench.arena.payload(HostPageId(32), 0)) in payloads
        bench.backend.clear()


def test_page_is_not_touched_after_the_answer(store: Store) -> None:
    """Whatever the answer is, the page belongs to someone else from then on."""
    bench = Bench(store.make(), layout=layout_of(256 << 10), num_pages=24)
    names = list(range(8))
    assert bench.write(names) == [OK] * 8

    answers = set()
    for deadline_s in (1e-5, 1e-4, 3e-4, 1e-3, 2e-3, 4e-3, 10.0):
        bench.order(bench.read_order(names, first_page=8, deadline_s=deadline_s))
        answers |= set(bench.wait())

        stamps = [bytes([0x40 + page]) * bench.payload_bytes for page in range(8)]
        for page, stamp in enumerate(stamps):
            bench.arena.payload(HostPageId(8 + page), 0)[:] = stamp
        assert set(bench.read(names, first_page=16)) == {OK}
        for page, stamp in enumerate(stamps):
            assert bench.arena.payload(HostPageId(8 + page), 0) == stamp
    assert answers <= {OK, ObjectStatus.TIMED_OUT}
    bench.close()
