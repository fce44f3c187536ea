"""One fixture per backend of plugins/storage, for the suites of tests/runtime/storage."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.storage.aibrix_store import AibrixStore, require_aibrix
from tests.plugins.storage.hf3fs_store import Hf3fsStore
from tests.plugins.storage.nixl_store import NixlStore
from tests.runtime.storage.stores import Bench, Store

BACKENDS = ("nixl", "aibrix", "hf3fs_emulated", "hf3fs")
"""Each has a fixture `<name>_store`, which skips where this machine cannot run the backend."""


@pytest.fixture
def nixl_store(tmp_path: Path) -> NixlStore:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    return NixlStore(tmp_path / "l3")


@pytest.fixture
def aibrix_store(tmp_path: Path) -> AibrixStore:
    require_aibrix()
    return AibrixStore(tmp_path / "l3")


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
