"""One fixture per backend; the conformance suite runs on each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.storage.redis_server import RedisServer, RedisStore
from tests.runtime.storage.stores import Bench, FakeStore, FileStore, Store

BACKENDS = ("file", "fake", "redis")
"""Each has a fixture `<name>_store`, which skips where this machine cannot run the backend."""


@pytest.fixture
def file_store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "l3")


@pytest.fixture
def fake_store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.kill()


@pytest.fixture
def redis_store(redis_server: RedisServer) -> RedisStore:
    return RedisStore(redis_server.url)


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Store:
    found = request.getfixturevalue(f"{request.param}_store")
    assert isinstance(found, Store)
    return found


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    bench = Bench(store.make())
    yield bench
    bench.close()
