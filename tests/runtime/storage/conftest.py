"""One fixture per backend; the conformance suite runs on each of them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.storage.backends.aibrix_store import AibrixStore, require_aibrix
from tests.runtime.storage.backends.hf3fs_store import Hf3fsStore
from tests.runtime.storage.backends.mooncake_service import MooncakeService, MooncakeStore
from tests.runtime.storage.backends.moto_server import MotoServer, S3Store
from tests.runtime.storage.backends.redis_server import RedisServer, RedisStore
from tests.runtime.storage.plugin_package import PluginStore, install_documented_package
from tests.runtime.storage.stores import Bench, FakeStore, FileStore, NixlStore, Store

BACKENDS = (
    "file",
    "fake",
    "redis",
    "mooncake",
    "nixl",
    "aibrix",
    "s3",
    "hf3fs_emulated",
    "hf3fs",
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
def hf3fs_emulated_store(tmp_path: Path) -> Hf3fsStore:
    return Hf3fsStore(tmp_path / "mount/l3", tmp_path / "mount")


@pytest.fixture
def hf3fs_store() -> Iterator[Hf3fsStore]:
    mount = os.environ.get("HF3FS_MOUNT")
    if mount is None:
        pytest.skip("HF3FS_MOUNT does not name a 3FS mount")
    path = Path(tempfile.mkdtemp(dir=mount, prefix="raydix-test-"))
    yield Hf3fsStore(path)
    shutil.rmtree(path)


@pytest.fixture
def plugin_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginStore:
    name = install_documented_package(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return PluginStore(name, tmp_path / "objects.db")


@pytest.fixture
def nixl_store(tmp_path: Path) -> NixlStore:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    return NixlStore(tmp_path / "l3")


@pytest.fixture
def aibrix_store(tmp_path: Path) -> AibrixStore:
    require_aibrix()
    return AibrixStore(tmp_path / "l3")


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
