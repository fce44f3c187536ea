"""One fixture per backend; the conformance suite runs on each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.storage.backends.mooncake_service import MooncakeService, MooncakeStore
from tests.runtime.storage.backends.moto_server import MotoServer, S3Store
from tests.runtime.storage.backends.redis_server import RedisServer, RedisStore
from tests.runtime.storage.plugin_package import PluginStore, install_documented_package
from tests.runtime.storage.stores import Bench, FakeStore, FileStore, Store

BACKENDS = (
    "file",
    "fake",
    "redis",
    "mooncake",
    "s3",
    "plugin",
)
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


@pytest.fixture(scope="session")
def mooncake_service() -> Iterator[MooncakeService]:
    service = MooncakeService()
    yield service
    service.kill()


@pytest.fixture
def mooncake_store(mooncake_service: MooncakeService) -> Iterator[MooncakeStore]:
    store = MooncakeStore(mooncake_service.address)
    yield store
    store.close()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    server = MotoServer()
    yield server
    server.kill()


@pytest.fixture
def s3_store(moto_server: MotoServer) -> S3Store:
    return moto_server.make_store()


@pytest.fixture
def plugin_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginStore:
    name = install_documented_package(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return PluginStore(name, tmp_path / "objects.db")


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
