"""What the conformance suite knows of each backend, and a real arena and worker around it."""

import errno
import math
import os
import queue
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AskExists,
    DeleteObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)
from raydix.runtime.storage.backend import ObjectName, ObjectRef, StorageBackend
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header
from raydix.runtime.storage.worker.worker import StorageWorker, Told
from raydix.runtime.testing.order_queue import OrderQueue
from raydix.runtime.tiers.host_arena import HostArena

GROUP = KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=3, head_dim=5)
LAYOUT = KvLayout(page_size=4, dtype="float32", dtype_bytes=4, groups=(GROUP,))
NAMESPACE = make_namespace(b"model", "v1", LAYOUT)
OBJECT_BYTES = 64 + LAYOUT.payload_bytes(0)


def layout_of(payload_bytes: int) -> KvLayout:
    """Pages of a given size."""
    group = KvGroup(kind=GroupKind.LATENT, layers=(0,), num_kv_heads=1, head_dim=payload_bytes // 4)
    return KvLayout(page_size=1, dtype="float32", dtype_bytes=4, groups=(group,))


def make_key(name: int) -> PageKey:
    return PageKey(name.to_bytes(32, "big"))


def content(name: int, length: int = LAYOUT.payload_bytes(0)) -> bytes:
    """The payload that belongs to a key."""
    period = bytes((name * 7 + i) % 251 for i in range(251))
    return (period * (length // 251 + 1))[:length]


def make_object(name: int, payload: bytes | None = None) -> ObjectRef:
    """A page outside any arena, header and all."""
    payload = content(name) if payload is None else payload
    page = memoryview(bytearray(64) + payload)
    fill_header(page, ObjectIdentity(NAMESPACE.digest, 0, make_key(name)))
    return ObjectRef(ObjectName(make_key(name), 0), page, 0)


class Store(ABC):
    """A backend with a way to look at what it stores, and to damage it.

    Can be pickled if another process may use it.
    """

    is_bounded = False
    """Raydix itself counts the bytes, and evicts the least recently used beyond `max_bytes`."""
    outlives_backend = True
    """What one backend has written, another finds."""
    is_shared = True
    """Several processes may use it at the same time."""

    @abstractmethod
    def make(self, max_bytes: int | None = None) -> StorageBackend:
        """A new backend on the same objects, where it has objects that outlive it.

        One that is bounded by its service has that bound set to about `max_bytes` more than it
        holds.
        """

    @abstractmethod
    def raw(self, name: int) -> bytes | None:
        """The stored bytes of an object of NAMESPACE."""

    @abstractmethod
    def set_raw(self, name: int, data: bytes) -> None:
        """Put `data` in the place of an object of NAMESPACE."""

    def refuse_deletes(self, backend: StorageBackend) -> AbstractContextManager[None] | None:
        """Have whatever makes room fail for a while; None where that cannot be brought about."""
        return None

    def lose_service(self, backend: StorageBackend) -> AbstractContextManager[None] | None:
        """Have an open backend find nobody who answers for a while; None where nobody can be lost.

        Those of a service that cannot be stopped alone have a test of their own.
        """
        return None

    def wait_for_dead_writers(self) -> None:
        """Wait until the service has given up what killed processes had begun to write."""
        return None

    def check(self, backend: StorageBackend) -> None:
        """Have the backend compare its books. Most keep none."""
        return None


class FileStore(Store):
    is_bounded = True

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, max_bytes: int | None = None) -> FileBackend:
        return FileBackend(self.root, max_bytes)

    def path(self, name: int) -> Path:
        key = make_key(name).hex()
        return self.root / NAMESPACE.hex / key[:2] / f"{key}.page"

    def raw(self, name: int) -> bytes | None:
        return self.path(name).read_bytes() if self.path(name).exists() else None

    def set_raw(self, name: int, data: bytes) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(data)

    @contextmanager
    def refuse_deletes(self, backend: StorageBackend) -> Iterator[None]:
        unlink = os.unlink

        def refuse(path: str) -> None:
            raise OSError(errno.EROFS, "Read-only file system", path)

        os.unlink = refuse  # type: ignore[assignment]
        try:
            yield
        finally:
            os.unlink = unlink

    @contextmanager
    def lose_service(self, backend: StorageBackend) -> Iterator[None]:
        elsewhere = self.root.with_name("unmounted")
        self.root.rename(elsewhere)
        try:
            yield
        finally:
            elsewhere.rename(self.root)

    def check(self, backend: StorageBackend) -> None:
        assert isinstance(backend, FileBackend)
        backend.check()


class FakeStore(Store):
    is_bounded = True
    outlives_backend = False
    is_shared = False

    def __init__(self) -> None:
        self.backend: FakeBackend | None = None

    def make(self, max_bytes: int | None = None, faults: Faults | None = None) -> FakeBackend:
        self.backend = FakeBackend(max_bytes, faults, sleep=lambda _: None)
        return self.backend

    def raw(self, name: int) -> bytes | None:
        assert self.backend is not None
        return self.backend.raw(ObjectName(make_key(name), 0))

    def set_raw(self, name: int, data: bytes) -> None:
        assert self.backend is not None
        self.backend.set_raw(ObjectName(make_key(name), 0), data)

    @contextmanager
    def refuse_deletes(self, backend: StorageBackend) -> Iterator[None]:
        assert isinstance(backend, FakeBackend)
        backend.set_faults(Faults(refuses_deletes=True))
        yield
        backend.set_faults(Faults())

    @contextmanager
    def lose_service(self, backend: StorageBackend) -> Iterator[None]:
        assert isinstance(backend, FakeBackend)
        backend.set_faults(Faults(latency_s=math.inf))
        try:
            yield
        finally:
            backend.set_faults(Faults())

    def check(self, backend: StorageBackend) -> None:
        assert isinstance(backend, FakeBackend)
        backend.check()


class Bench:
    """A worker whose answers are waited for, one order at a time."""

    def __init__(
        self,
        backend: StorageBackend,
        namespace: Namespace = NAMESPACE,
        layout: KvLayout = LAYOUT,
        num_pages: int = 64,
    ) -> None:
        self.backend = backend
        self.payload_bytes = layout.payload_bytes(0)
        self.arena = HostArena.create(layout, num_pages * layout.host_page_bytes(0), 1, "/dev/shm")

        self.answers: queue.Queue[ObjectsDone] = queue.Queue()
        self.worker = StorageWorker(
            backend, self.arena, namespace, self.answers.put, num_transfers=2, tidy_every_s=3600
        )
        self.orders = OrderQueue()
        self.worker.serve(self.orders, self.orders.descriptor)
        self.next_batch = 0

    def batch_id(self) -> BatchId:
        self.next_batch += 1
        return BatchId(self.next_batch)

    def order(self, message: Told) -> None:
        """Returns when the worker knows of it."""
        self.orders.put(message)
        self.orders.wait_read()

    def wait(self) -> list[ObjectStatus]:
        """The statuses of the next answer."""
        return [ObjectStatus(code) for code in self.answers.get(timeout=30).statuses]

    def exists(self, names: list[int]) -> list[ObjectStatus]:
        self.order(AskExists(batch_id=self.batch_id(), keys=b"".join(map(make_key, names))))
        return self.wait()

    def write_order(self, names: list[int], first_page: int = 0) -> WriteObjects:
        pages = range(first_page, first_page + len(names))
        for page, name in zip(pages, names, strict=True):
            self.arena.payload(HostPageId(page), 0)[:] = content(name, self.payload_bytes)
        keys = b"".join(map(make_key, names))
        return WriteObjects(batch_id=self.batch_id(), keys=keys, host_page_ids=int32_array(pages))

    def write(self, names: list[int], first_page: int = 0) -> list[ObjectStatus]:
        self.order(self.write_order(names, first_page))
        return self.wait()

    def read_order(
        self, names: list[int], first_page: int = 32, deadline_s: float = 30.0
    ) -> ReadObjects:
        pages = range(first_page, first_page + len(names))
        for page in pages:
            self.arena.payload(HostPageId(page), 0)[:] = bytes([0xEE]) * self.payload_bytes
        keys = b"".join(map(make_key, names))
        return ReadObjects(
            batch_id=self.batch_id(),
            keys=keys,
            host_page_ids=int32_array(pages),
            deadline_s=deadline_s,
        )

    def read(self, names: list[int], first_page: int = 32) -> list[ObjectStatus]:
        """Read and prove that whatever is OK is right."""
        self.order(self.read_order(names, first_page))
        statuses = self.wait()
        for place, (name, status) in enumerate(zip(names, statuses, strict=True)):
            if status is ObjectStatus.OK:
                page = self.arena.payload(HostPageId(first_page + place), 0)
                assert page == content(name, self.payload_bytes)
        return statuses

    def clear(self) -> list[ObjectStatus]:
        self.order(DeleteObjects(batch_id=self.batch_id()))
        return self.wait()

    def close(self) -> None:
        self.orders.end()
        self.worker.close()
        self.orders.close()
        self.arena.close()
