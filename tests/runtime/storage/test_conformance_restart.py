"""What every L3 backend must do when a process restarts or dies, or its server does not answer."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName
from tests.runtime.storage.stores import OBJECT_BYTES, Bench, Store, layout_of, make_key

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING
PAYLOAD_BYTES = 512 << 10
NUM_OBJECTS = 16


@pytest.fixture
def lasting_store(store: Store) -> Store:
    if not store.outlives_backend:
        pytest.skip("its objects live in the backend itself")
    return store


def test_restart_finds_what_was_written(lasting_store: Store) -> None:
    bench = Bench(lasting_store.make())
    bench.write([1, 2, 3])
    bench.close()
    again = Bench(lasting_store.make())
    assert again.exists([1, 9, 3]) == [OK, MISSING, OK]
    assert again.read([3, 9, 2, 1]) == [OK, MISSING, OK, OK]
    assert again.write([3, 4]) == [OK] * 2
    assert again.backend.delete([ObjectName(make_key(name), 0) for name in (1, 9)]) == [OK, MISSING]
    again.close()
    last = Bench(lasting_store.make())
    assert last.read([1, 2, 3, 4]) == [MISSING, OK, OK, OK]
    last.close()


def test_same_backend_opens_again(lasting_store: Store) -> None:
    backend = lasting_store.make()
    for name in (1, 2, 3):
        bench = Bench(backend)
        bench.write([name])
        assert bench.read(list(range(1, name + 1))) == [OK] * name
        bench.close()


def write_for_ever(store: Store, started: Connection) -> None:
    """Write the same batch again and again; say so before the first, and before it is done."""
    bench = Bench(store.make(), layout=layout_of(PAYLOAD_BYTES), num_pages=NUM_OBJECTS)
    names = list(range(NUM_OBJECTS))
    while True:
        bench.order(bench.write_order(names))
        started.send(os.getpid())
        bench.wait()
        bench.clear()


@pytest.mark.parametrize("num_batches", [1, 2, 4])
def test_writer_killed_in_a_batch_leaves_whole_objects_or_none(
    lasting_store: Store, num_batches: int
) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=write_for_ever, args=(lasting_store, sender), daemon=True)
    process.start()
    sender.close()

    for _ in range(num_batches):
        assert receiver.poll(60)
        receiver.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()

    bench = Bench(lasting_store.make(), layout=layout_of(PAYLOAD_BYTES), num_pages=2 * NUM_OBJECTS)
    names = list(range(NUM_OBJECTS))
    assert set(bench.read(names, first_page=NUM_OBJECTS)) <= {OK, MISSING}
    lasting_store.wait_for_dead_writers()
    assert bench.write(names) == [OK] * NUM_OBJECTS
    assert bench.read(names, first_page=NUM_OBJECTS) == [OK] * NUM_OBJECTS
    bench.close()


def test_smaller_bound_deletes_nothing_unasked(lasting_store: Store) -> None:
    if not lasting_store.is_bounded:
        pytest.skip("the service, not Raydix, bounds this backend")
    bench = Bench(lasting_store.make(max_bytes=8 * OBJECT_BYTES))
    bench.write(list(range(8)))
    bench.close()
    with pytest.raises(
        ConfigError, match=rf"holds {8 * OBJECT_BYTES} bytes.*Set cache\.l3\.max_bytes"
    ):
        Bench(lasting_store.make(max_bytes=4 * OBJECT_BYTES))
    again = Bench(lasting_store.make(max_bytes=8 * OBJECT_BYTES))
    assert again.read(list(range(8))) == [OK] * 8
    again.close()


def test_two_backends_see_each_others_objects(lasting_store: Store) -> None:
    if not lasting_store.is_shared:
        pytest.skip("one engine at a time")
    first, second = Bench(lasting_store.make()), Bench(lasting_store.make())
    first.write([1])
    second.write([1, 2])
    assert first.read([1, 2]) == [OK] * 2
    assert second.clear() == [OK]
    assert first.read([1, 2]) == [MISSING] * 2
    assert first.worker.stats().get("bytes", 0) == 0, "what is gone is no longer counted"
    assert first.write([1]) == [OK]
    assert second.read([1]) == [OK]
    first.close()
    second.close()


def test_server_that_answers_is_found_before_anything_is_stored(bench: Bench) -> None:
    bench.worker.require_answer(timeout_s=30)
    assert bench.worker.last_error() is None


def test_server_that_does_not_answer_is_told_with_the_cause_and_used_once_it_does(
    bench: Bench, store: Store
) -> None:
    lost = store.lose_service(bench.backend)
    if lost is None:
        pytest.skip("there is no service of this backend that could be lost here")
    with lost, pytest.raises(ConfigError, match=r"does not answer: .*(has not|is gone).*--lazy"):
        bench.worker.require_answer(timeout_s=0.2)
    bench.worker.require_answer(timeout_s=30)
    assert bench.write([1]) == [OK]
