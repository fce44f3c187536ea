"""What the conformance suite must know of AIBrix's RocksDB connector."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raydix.plugins.storage.aibrix import AibrixBackend
from raydix.runtime.storage.backend import StorageBackend
from tests.runtime.storage.stores import NAMESPACE, Store, make_key


def require_aibrix() -> None:
    """Skip the test where the library is not installed."""
    pytest.importorskip(
        "aibrix_kvcache.l2.connectors.rocksdb",
        reason="aibrix-kvcache is not installed",
        exc_type=ImportError,
    )


class _Undeletable:
    """A database that deletes nothing."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def __contains__(self, key: bytes) -> bool:
        return key in self._database

    def delete(self, key: bytes) -> None:
        raise Exception("IO error: Read-only file system")


class AibrixStore(Store):
    is_bounded = True
    is_shared = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backend: AibrixBackend | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"root": self.root, "backend": None}

    def make(self, max_bytes: int | None = None) -> AibrixBackend:
        self.backend = AibrixBackend(self.root, max_bytes, ttl_s=3600)
        return self.backend

    def _database(self) -> Any:
        assert self.backend is not None
        return self.backend._connector.store

    def _key(self, name: int) -> bytes:
        return NAMESPACE.digest + bytes(2) + make_key(name)

    def raw(self, name: int) -> bytes | None:
        value: bytes | None = self._database().get(self._key(name))
        return value

    def set_raw(self, name: int, data: bytes) -> None:
        self._database().put(self._key(name), data)

    @contextmanager
    def refuse_deletes(self, backend: StorageBackend) -> Iterator[None]:
        assert self.backend is not None
        connector = self.backend._connector
        database = connector.store
        connector.store = _Undeletable(database)
        yield
        connector.store = database

    def check(self, backend: StorageBackend) -> None:
        assert isinstance(backend, AibrixBackend)
        backend.check()
