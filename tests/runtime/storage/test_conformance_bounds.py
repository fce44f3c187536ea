"""What every L3 backend must do when its store is full."""

import pytest

from raydix.ids import UserId
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import RetainObjects, Retention, RetentionKind
from tests.runtime.storage.stores import (
    OBJECT_BYTES,
    Bench,
    Store,
    layout_of,
    make_key,
)

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING


def test_full_store_refuses_or_gives_up_objects_and_the_rest_is_good(store: Store) -> None:
    names = list(range(40))
    bench = Bench(store.make(max_bytes=2 << 20), layout=layout_of(128 << 10), num_pages=80)
    written = bench.write(names)
    assert set(written) <= {OK, ObjectStatus.FULL}
    found = bench.read(names, first_page=40)
    assert set(found) == {OK, MISSING}
    assert all(status is MISSING for place, status in enumerate(found) if written[place] is not OK)
    assert bench.clear() == [OK]
    assert bench.write([50]) == [OK]
    assert bench.read([50], first_page=40) == [OK]
    bench.close()


def require_bound(store: Store) -> None:
    if not store.is_bounded:
        pytest.skip("the service, not Raydix, bounds this backend")


def test_full_store_gives_up_the_least_recently_used(store: Store) -> None:
    require_bound(store)
    bench = Bench(store.make(max_bytes=4 * OBJECT_BYTES))
    for name in range(4):
        bench.write([name])
    bench.read([0])
    assert bench.write([4]) == [OK]
    assert bench.exists(list(range(5))) == [OK, MISSING, OK, OK, OK]
    assert bench.worker.stats()["bytes"] == 4 * OBJECT_BYTES
    bench.close()


def test_full_store_gives_up_objects_of_ended_sessions_first_and_kept_ones_last(
    store: Store,
) -> None:
    require_bound(store)
    bench = Bench(store.make(max_bytes=4 * OBJECT_BYTES))
    for name in range(4):
        bench.write([name])
    for name, kind, seconds in ((0, RetentionKind.KEEP, 600.0), (2, RetentionKind.END, 0.0)):
        retention = Retention(kind=kind, seconds=seconds)
        bench.order(RetainObjects(user=UserId(1 + name), keys=make_key(name), retention=retention))
    assert bench.write([4, 5]) == [OK, OK]
    assert bench.exists(list(range(6))) == [OK, MISSING, MISSING, OK, OK, OK]
    bench.order(RetainObjects(user=UserId(1)))
    assert bench.write([6]) == [OK]
    assert bench.exists([0]) == [MISSING]
    store.check(bench.backend)
    bench.close()


def test_a_store_takes_hints_of_what_it_does_not_have(store: Store) -> None:
    bench = Bench(store.make())
    end = Retention(kind=RetentionKind.END)
    bench.order(RetainObjects(user=UserId(1), keys=make_key(0), retention=end))
    bench.order(RetainObjects(user=UserId(1)))
    assert bench.write([0]) == [OK]
    assert bench.read([0]) == [OK]
    bench.close()


def test_store_makes_room_while_nobody_waits_and_counts_it(store: Store) -> None:
    require_bound(store)
    bench = Bench(store.make(max_bytes=32 * OBJECT_BYTES))
    assert bench.write(list(range(31))) == [OK] * 31
    assert not bench.backend.tidy()
    assert bench.write([31]) == [OK]
    while bench.backend.tidy():
        pass
    assert bench.worker.stats()["objects"] == 30
    assert bench.worker.stats()["objects_evicted"] == 2
    # A batch loses its last objects first.
    assert bench.exists([0, 28, 29, 30, 31]) == [OK, OK, MISSING, MISSING, OK]
    store.check(bench.backend)
    bench.close()


def test_object_above_the_bound_is_refused_and_nothing_is_lost(store: Store) -> None:
    require_bound(store)
    bench = Bench(store.make(max_bytes=OBJECT_BYTES - 1))
    assert bench.write([1]) == [ObjectStatus.FULL]
    assert bench.exists([1]) == [MISSING]
    assert bench.worker.stats()["bytes"] == 0
    bench.close()


def test_store_that_can_delete_nothing_is_full_for_as_long_and_no_longer(store: Store) -> None:
    require_bound(store)
    bench = Bench(store.make(max_bytes=8 * OBJECT_BYTES))
    assert bench.write(list(range(8))) == [OK] * 8
    trouble = store.refuse_deletes(bench.backend)
    if trouble is None:
        pytest.skip("its deletions cannot fail")

    with trouble:
        for turn in range(20):
            assert bench.write([10 + turn, 40 + turn]) == [ObjectStatus.FULL] * 2
            assert not bench.backend.tidy()
        assert bench.worker.stats()["bytes"] == 8 * OBJECT_BYTES
        assert bench.read(list(range(8))) == [OK] * 8

    while bench.backend.tidy():
        pass
    assert bench.write(list(range(50, 58))) == [OK] * 8
    assert bench.read(list(range(50, 58))) == [OK] * 8
    assert bench.worker.stats()["bytes"] == 8 * OBJECT_BYTES
    store.check(bench.backend)
    bench.close()
