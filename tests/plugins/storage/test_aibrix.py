"""AIBrix alone: its missing-block fault, unusable folders, and failures of its connector."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.plugins.storage.aibrix import AibrixBackend
from raydix.runtime.messages.host import ObjectStatus
from tests.plugins.storage.aibrix_store import AibrixStore, require_aibrix
from tests.runtime.storage.stores import NAMESPACE, OBJECT_BYTES, Bench

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING


@pytest.fixture
def store(tmp_path: Path) -> AibrixStore:
    require_aibrix()
    return AibrixStore(tmp_path / "l3")


@pytest.fixture
def bench(store: AibrixStore) -> Iterator[Bench]:
    bench = Bench(store.make())
    yield bench
    bench.close()


def test_block_that_is_missing_shifts_no_other_into_its_place(bench: Bench) -> None:
    """Asked for these eight at once, AIBrix's manager may return seven, one of them garbage."""
    bench.write([0, 1, 2, 3, 5, 6, 7])
    assert bench.read(list(range(8))) == [OK] * 4 + [MISSING] + [OK] * 3


def test_folder_in_use_is_a_config_error(bench: Bench, store: AibrixStore) -> None:
    with pytest.raises(ConfigError, match="its own folder"):
        AibrixBackend(store.root, ttl_s=60).open(memoryview(bytearray(64)), NAMESPACE)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "aibrix_kvcache.l2.connectors.rocksdb", None)
    with pytest.raises(ConfigError, match=r"raydix\[aibrix\]"):
        AibrixBackend(tmp_path, ttl_s=60).open(memoryview(bytearray(64)), NAMESPACE)


def test_object_that_has_expired_is_forgotten_and_written_again(
    bench: Bench, store: AibrixStore
) -> None:
    bench.write([1, 2])
    assert store.backend is not None
    store._database().delete(store._key(1))
    assert bench.read([1, 2]) == [MISSING, OK]
    assert bench.worker.stats()["objects"] == 1
    store._database().delete(store._key(2))
    assert bench.write([1, 2]) == [OK] * 2
    assert bench.read([1, 2]) == [OK] * 2
    store.check(bench.backend)


@pytest.mark.parametrize(
    ("message", "status"),
    [("broken", ObjectStatus.IO_ERROR), ("No space left on device", ObjectStatus.FULL)],
)
def test_failure_of_the_connector_is_a_status(
    bench: Bench, store: AibrixStore, message: str, status: int
) -> None:
    from aibrix_kvcache.status import Status, StatusCodes

    assert store.backend is not None
    connector = store.backend._connector

    async def fail(*_: object) -> Any:
        return Status(StatusCodes.ERROR, message)

    connector.put = fail
    assert bench.write([1]) == [status]
    assert bench.worker.stats()["objects"] == 0
    connector.get = fail
    assert bench.read([1]) == [status]
    del connector.put, connector.get
    assert bench.write([1]) == [OK]
    store.check(bench.backend)


def test_connector_that_raises_leaks_no_room_and_holds_no_name(store: AibrixStore) -> None:
    bench = Bench(store.make(max_bytes=4 * OBJECT_BYTES))
    assert store.backend is not None
    connector = store.backend._connector

    async def fail(*_: object) -> Any:
        raise RuntimeError("out of order")

    connector.put = fail
    for _ in range(8):
        assert bench.write([1]) == [ObjectStatus.IO_ERROR]
    del connector.put
    assert bench.write([1, 2, 3, 4]) == [OK] * 4
    assert bench.read([1, 2, 3, 4]) == [OK] * 4
    store.check(bench.backend)
    bench.close()


def test_open_that_fails_leaves_the_database_closed(
    store: AibrixStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    backend = store.make()
    monkeypatch.setattr(backend, "_take_stock", fail)
    with pytest.raises(RuntimeError, match="out of order"):
        backend.open(memoryview(bytearray(64)), NAMESPACE)
    Bench(store.make()).close()


def test_folder_is_its_users_alone(bench: Bench, store: AibrixStore) -> None:
    assert store.root.stat().st_mode & 0o777 == 0o700
