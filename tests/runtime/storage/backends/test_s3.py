"""The S3 backend: what it says without its library, without its bucket and without its service."""

import builtins
import time
from collections.abc import Iterator

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.l3 import S3L3Section
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.create import create_backend
from tests.runtime.storage.backends.moto_server import MotoServer
from tests.runtime.storage.stores import NAMESPACE, Bench, make_object

OK, MISSING, IO_ERROR = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.IO_ERROR
LATE = 1e18


@pytest.fixture
def own_server() -> Iterator[MotoServer]:
    server = MotoServer()
    yield server
    server.kill()


def section(endpoint: str, bucket: str, timeout_s: float = 10.0) -> S3L3Section:
    return S3L3Section(backend="s3", bucket=bucket, endpoint=endpoint, timeout_s=timeout_s)


def opened(section: S3L3Section) -> StorageBackend:
    backend = create_backend(section)
    backend.open(memoryview(b""), NAMESPACE)
    return backend


def test_without_its_library_the_backend_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = builtins.__import__

    def no_obstore(name: str, *arguments: object) -> object:
        if name.startswith("obstore"):
            raise ImportError("No module named obstore")
        return find(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_obstore)
    with pytest.raises(ConfigError, match=r"pip install raydix\[s3\]"):
        create_backend(section("http://127.0.0.1:9", "bucket"))


def test_missing_bucket_is_a_config_error(moto_server: MotoServer) -> None:
    endpoint = moto_server.make_store().endpoint
    with pytest.raises(ConfigError, match="nowhere cannot be used"):
        opened(section(endpoint, "nowhere"))


def test_killed_service_fails_operations_within_their_deadlines(own_server: MotoServer) -> None:
    store = own_server.make_store()
    backend = opened(section(store.endpoint, store.bucket, timeout_s=2.0))
    objects = [make_object(name) for name in range(3)]
    names = [ref.name for ref in objects]
    assert backend.batch_put_from(objects, LATE) == [OK] * 3

    own_server.kill()
    troubles = {IO_ERROR, ObjectStatus.TIMED_OUT}
    started_s = time.monotonic()
    assert set(backend.batch_get_into(objects, time.monotonic() + 1.0)) <= troubles
    assert set(backend.batch_put_from(objects, time.monotonic() + 1.0)) <= troubles
    assert set(backend.batch_exists(names)) <= troubles
    assert set(backend.delete(names)) <= troubles
    assert backend.query(names) == [None] * 3
    assert time.monotonic() - started_s < 30

    own_server.start()
    own_server.num_buckets = 0
    assert own_server.make_store().bucket == store.bucket
    assert backend.batch_get_into(objects, LATE) == [MISSING] * 3
    assert backend.batch_put_from(objects, LATE) == [OK] * 3
    assert backend.batch_get_into(objects, LATE) == [OK] * 3
    backend.close()


def test_service_that_is_not_there_at_first_is_no_config_error() -> None:
    MotoServer().kill()
    backend = opened(section("http://127.0.0.1:9", "bucket", timeout_s=1.0))
    assert set(backend.batch_exists([make_object(1).name])) <= {IO_ERROR, ObjectStatus.TIMED_OUT}
    last = backend.last_error()
    assert last is not None
    assert last.text.startswith("S3 bucket bucket at http://127.0.0.1:9: ")
    backend.close()


def test_service_that_is_not_there_is_told_with_the_cause() -> None:
    pytest.importorskip("obstore")
    bench = Bench(create_backend(section("http://127.0.0.1:9", "bucket", timeout_s=1.0)))
    with pytest.raises(ConfigError, match=r"does not answer: S3 bucket bucket at http://127"):
        bench.worker.require_answer(timeout_s=30)
    bench.close()
