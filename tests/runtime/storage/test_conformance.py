"""What every L3 backend must do, seen through the worker. Runs on files and on the fake."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydix.ids import HostPageId
from raydix.runtime.messages.host import CancelBatch, ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.corruption import Corruption, corrupt
from raydix.runtime.storage.namespace import make_namespace
from tests.runtime.storage.stores import (
    LAYOUT,
    OBJECT_BYTES,
    Bench,
    FakeStore,
    FileStore,
    Store,
    content,
    make_key,
)

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING


@pytest.fixture(params=["file", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FileStore(tmp_path / "l3") if request.param == "file" else FakeStore()


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    bench = Bench(store.make())
    yield bench
    bench.close()


def test_written_pages_come_back(bench: Bench) -> None:
    names = list(range(20))
    assert bench.find(names) == [MISSING] * 20
    assert bench.write(names) == [OK] * 20
    assert bench.find(names) == [OK] * 20
    assert bench.read(names) == [OK] * 20


@pytest.mark.parametrize("holes", [[0], [3], [7], [0, 1, 6, 7], list(range(8))])
def test_hole_in_a_batch_shifts_nothing(bench: Bench, holes: list[int]) -> None:
    bench.write([name for name in range(8) if name not in holes])
    expected = [MISSING if name in holes else OK for name in range(8)]
    assert bench.find(list(range(8))) == expected
    assert bench.read(list(range(8))) == expected


def test_duplicate_names_in_a_batch_are_each_answered(bench: Bench) -> None:
    assert bench.write([1, 2, 1]) == [OK] * 3
    assert bench.read([2, 1, 1, 9, 2]) == [OK, OK, OK, MISSING, OK]


def test_second_write_keeps_the_first_bytes(bench: Bench, store: Store) -> None:
    bench.write([1])
    first = store.raw(1)
    order = bench.write_order([1])
    bench.arena.payload(HostPageId(0), 0)[:4] = b"oops"
    bench.worker.submit(order)
    assert bench.wait() == [OK]
    assert store.raw(1) == first
    assert bench.worker.stats()["objects_written"] == 1


FOUND_AS = {
    Corruption.EMPTY: ObjectStatus.TOO_SHORT,
    Corruption.SHORT: ObjectStatus.TOO_SHORT,
    Corruption.LONG: ObjectStatus.WRONG_LENGTH,
    Corruption.ZEROED: ObjectStatus.BAD_MAGIC,
    Corruption.FLIPPED: ObjectStatus.BAD_CHECKSUM,
    Corruption.SWAPPED: ObjectStatus.WRONG_KEY,
    Corruption.FOREIGN: ObjectStatus.WRONG_NAMESPACE,
    Corruption.STALE: ObjectStatus.BAD_VERSION,
}


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
    assert other.find([1]) == [MISSING]
    assert other.read([1]) == [MISSING]
    other.write([1, 2])
    assert other.clear() == [OK]
    assert other.find([1, 2]) == [MISSING] * 2
    other.close()
    again = Bench(backend)
    assert again.read([1]) == [OK]
    again.close()


def test_full_store_gives_up_the_least_recently_used(store: Store) -> None:
    bench = Bench(store.make(max_bytes=4 * OBJECT_BYTES))
    for name in range(4):
        bench.write([name])
    bench.read([0])
    assert bench.write([4]) == [OK]
    assert bench.find(list(range(5))) == [OK, MISSING, OK, OK, OK]
    assert bench.worker.stats()["bytes"] == 4 * OBJECT_BYTES
    bench.close()


def test_object_above_the_bound_is_refused_and_nothing_is_lost(store: Store) -> None:
    bench = Bench(store.make(max_bytes=OBJECT_BYTES - 1))
    assert bench.write([1]) == [ObjectStatus.FULL]
    assert bench.find([1]) == [MISSING]
    assert bench.worker.stats()["bytes"] == 0
    bench.close()


def test_delete_answers_per_name(bench: Bench, store: Store) -> None:
    bench.write([1, 2])
    names = [ObjectName(make_key(name), 0) for name in (1, 9, 2)]
    backend = bench.worker._backend
    assert [info and info.size_bytes for info in backend.query(names)] == [OBJECT_BYTES, None, OBJECT_BYTES]
    assert backend.delete(names) == [OK, MISSING, OK]
    assert bench.read([1, 2]) == [MISSING] * 2


def test_delete_under_read_gives_the_page_or_a_miss(bench: Bench, store: Store) -> None:
    names = [ObjectName(make_key(name), 0) for name in range(16)]
    backend = bench.worker._backend
    for _ in range(10):
        bench.write(list(range(16)))
        bench.worker.submit(bench.read_order(list(range(16))))
        backend.delete(names)
        for name, status in enumerate(bench.wait()):
            assert status in (OK, MISSING)
            if status is OK:
                assert bytes(bench.arena.payload(HostPageId(32 + name), 0)) == content(name)
    backend.check()


def test_concurrent_writers_of_one_key_leave_one_good_object(bench: Bench, store: Store) -> None:
    backend = bench.worker._backend
    bench.write([7])
    page = bytes(bench.arena.page(HostPageId(0), 0))
    backend.clear()
    ref = ObjectRef(ObjectName(make_key(7), 0), memoryview(bytearray(page)), 0)
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
    assert bench.worker.stats()["bytes"] == OBJECT_BYTES
    backend.check()


def test_past_its_deadline_a_batch_is_timed_out(bench: Bench) -> None:
    bench.write([1, 2])
    bench.worker.submit(bench.read_order([1, 2], deadline_s=-1.0))
    assert bench.wait() == [ObjectStatus.TIMED_OUT] * 2


def test_cancelled_batch_is_still_answered(bench: Bench) -> None:
    bench.write([1])
    entered, leave = threading.Event(), threading.Event()
    backend = bench.worker._backend
    get = backend.batch_get_into

    def slow_get(refs: list[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        entered.set()
        assert leave.wait(30)
        return get(refs, deadline_s)

    backend.batch_get_into = slow_get  # type: ignore[method-assign]
    order = bench.read_order([1] * 12)
    bench.worker.submit(order)
    assert entered.wait(30)
    bench.worker.submit(CancelBatch(batch_id=order.batch_id))
    bench.worker.submit(CancelBatch(batch_id=bench.batch_id()))
    leave.set()
    assert bench.wait() == [OK] * 8 + [ObjectStatus.CANCELLED] * 4
    bench.worker.quiesce()
    assert bench.worker.stats()["active_batches"] == 0


def test_backend_that_raises_answers_io_error(bench: Bench) -> None:
    def broken(*_: object) -> list[ObjectStatus]:
        raise RuntimeError("out of order")

    bench.worker._backend.batch_get_into = broken  # type: ignore[method-assign]
    bench.worker._backend.clear = broken  # type: ignore[method-assign, assignment]
    assert bench.read([1, 2]) == [ObjectStatus.IO_ERROR] * 2
    assert bench.clear() == [ObjectStatus.IO_ERROR]
