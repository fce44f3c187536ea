"""L3 in RocksDB, through the connector of AIBrix's KV cache."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.batches import compare_length
from raydix.runtime.storage.capacity.room import Reservation, Room
from raydix.runtime.storage.capacity.stored_bound import open_room
from raydix.runtime.storage.file_modes import OWNER_ALONE
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace

_NUM_THREADS = 4
_WRITE_BUFFER_BYTES = 64 << 20


class _Region:
    """A page in the shape of AIBrix's memory regions. What does not fit is measured, not copied."""

    def __init__(self, page: memoryview) -> None:
        self.page = page
        self.filled_bytes = 0

    def fill(self, data: bytes) -> None:
        """Take a value from the connector."""
        self.filled_bytes = len(data)
        if len(data) == len(self.page):
            self.page[:] = data

    def tobytes(self) -> bytes:
        """The value for the connector."""
        return bytes(self.page)


class AibrixBackend:
    """Owns: a RocksDB folder, which no other process may use, and how many bytes its objects have.

    Keys are namespace, group (2 bytes) and page key. Each object is asked for by itself: AIBrix's
    own manager reads batches, and some of its connectors (0.8.0) return wrong blocks in the place
    of a missing one. Bytes are copied once each way, since the connector deals in `bytes`. `open`
    reads through the store once to learn the sizes, and the order of use starts anew.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int | None = None,
        *,
        ttl_s: int,
        clock: Callable[[], float] = time.monotonic,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._eviction = eviction
        self._ttl_s = ttl_s
        self._clock = clock

        self._prefix = b""
        self._room = Room(max_bytes, self._remove, eviction)
        self._writing: set[bytes] = set()
        self._connector: Any = None
        self._as_status: Any = None
        """A function that turns an error into a status: RocksDB's errors have no own type."""
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._counts = BackendCounts("AIBrix")

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Open the database.

        Raises ConfigError if AIBrix is not installed, or the folder is in use or unusable.
        """
        self._prefix = namespace.digest

        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="aibrix")
            connector = self._make_connector(self._executor)

            try:
                self._root.parent.mkdir(parents=True, exist_ok=True)
                OWNER_ALONE.make_folder(str(self._root))
                status = connector.open()
                if not status.is_ok():
                    raise ConfigError(
                        f"cache.l3.path {self._root} cannot be opened by RocksDB: {status}. "
                        "Give every engine its own folder."
                    )
                self._connector = connector
                self._take_stock()
            except OSError as error:
                raise ConfigError(
                    f"cache.l3.path {self._root} cannot be used: {error}. Set it to a folder that "
                    "can be written."
                ) from error
            undo.pop_all()

    def _take_stock(self) -> None:
        sizes = {key.hex(): len(value) for key, value in self._connector.store.items()}
        self._room = open_room(
            self._root, self._max_bytes, sizes, self._remove, OWNER_ALONE, eviction=self._eviction
        )

    def _make_connector(self, executor: ThreadPoolExecutor) -> Any:
        # Not by `from_envs`: AIBrix's environment variables would hold for the whole process.
        try:
            import rocksdict
            from aibrix_kvcache.l2.connectors.rocksdb import RocksDBConnector
            from aibrix_kvcache.status import Status
        except ImportError as error:
            raise ConfigError(
                f"cache.l3.backend is aibrix, but the library cannot be imported ({error}). "
                "Install raydix[aibrix]."
            ) from error

        self._as_status = Status.capture_exception
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_target_file_size_base(_WRITE_BUFFER_BYTES)
        access = rocksdict.AccessType.read_write().with_ttl(self._ttl_s)
        return RocksDBConnector(str(self._root), options, access, executor)

    def _key(self, name: ObjectName) -> bytes:
        return self._prefix + name.group.to_bytes(2, "big") + name.key

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Ask the database, name by name."""
        return self._each([self._exists(self._key(name)) for name in names])

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Read values and copy them into the arena."""
        statuses = self._each(
            [self._get(self._key(ref.name), ref.page, deadline_s) for ref in refs]
        )
        self._touch(refs)
        return statuses

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Copy pages out of the arena and write them."""
        statuses = self._each(
            [self._put(self._key(ref.name), ref.page, deadline_s) for ref in refs]
        )
        self._touch(refs)
        return statuses

    def _touch(self, refs: Sequence[ObjectRef]) -> None:
        """Mark a chain as used, the last object first."""
        self._room.touch(self._key(ref.name).hex() for ref in reversed(refs))

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Delete; a value that is being read was copied before."""
        return self._each([self._delete(self._key(name)) for name in names])

    def _each(self, operations: Sequence[Coroutine[Any, Any, ObjectStatus]]) -> list[ObjectStatus]:
        """Run operations one after the other, so that deadlines hold between two objects."""

        # Nothing is lost by that: batches run on several threads anyway.

        async def run() -> list[ObjectStatus]:
            return [await operation for operation in operations]

        return asyncio.run(run())

    async def _exists(self, key: bytes) -> ObjectStatus:
        return self._result(await self._connector.exists(key))

    async def _get(self, key: bytes, page: memoryview, deadline_s: float) -> ObjectStatus:
        if self._clock() >= deadline_s:
            return ObjectStatus.TIMED_OUT

        region = _Region(page)
        result = self._result(await self._connector.get(key, region))
        if result is ObjectStatus.MISSING:
            self._room.forget([key.hex()])  # past its time to live
        if result is not ObjectStatus.OK:
            return result

        status = compare_length(region.filled_bytes, len(page))
        if status is ObjectStatus.OK:
            self._counts.add("objects_read")
        return status

    async def _put(self, key: bytes, page: memoryview, deadline_s: float) -> ObjectStatus:
        if self._clock() >= deadline_s:
            return ObjectStatus.TIMED_OUT
        found = await self._exists(key)
        if found is not ObjectStatus.MISSING:
            return found

        # Of two threads with one page the first writes it: room is taken for it once.
        with self._lock:
            if key in self._writing:
                return ObjectStatus.OK
            self._writing.add(key)
        try:
            self._room.forget([key.hex()])
            with self._room.reserve([len(page)]) as reservation:
                return await self._write(key, page, reservation)
        finally:
            with self._lock:
                self._writing.remove(key)

    async def _write(self, key: bytes, page: memoryview, reservation: Reservation) -> ObjectStatus:
        if not reservation.sizes:
            self._counts.add("store_full")
            return ObjectStatus.FULL
        result = self._result(await self._connector.put(key, _Region(page)))
        if result is ObjectStatus.OK:
            self._room.settle(reservation, {key.hex(): len(page)})
            self._counts.add("objects_written")
        return result

    async def _delete(self, key: bytes) -> ObjectStatus:
        found = await self._exists(key)
        if found is ObjectStatus.OK:
            found = self._result(await self._connector.delete(key))
        if found in (ObjectStatus.OK, ObjectStatus.MISSING):
            self._room.forget([key.hex()])
        return found

    def _remove(self, names: Sequence[str]) -> Sequence[str]:
        """Delete objects for the room; returns those that could not be."""
        store = self._connector.store
        failures = {name: self._as_status(store.delete)(bytes.fromhex(name)) for name in names}
        stuck = [name for name, failure in failures.items() if failure is not None]
        for name in stuck:
            self._result(failures[name])
        return stuck

    def clear(self) -> ObjectStatus:
        """Delete one object after the other."""
        keys = [
            key for key in map(bytes.fromhex, self._room.names()) if key.startswith(self._prefix)
        ]
        statuses = self._each([self._delete(key) for key in keys])
        return ObjectStatus.IO_ERROR if ObjectStatus.IO_ERROR in statuses else ObjectStatus.OK

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes as they were written; the database knows no times."""
        sizes = [self._room.size(self._key(name).hex()) for name in names]
        return [None if size is None else ObjectInfo(size, None) for size in sizes]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """Let what is known of their next use decide which objects go first."""
        self._room.retain((self._key(name).hex() for name in names), user, retention)

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces, and counters."""
        return self._room.figures() | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum over objects."""
        self._room.check()

    def tidy(self) -> bool:
        """Evict down to the low mark."""
        return self._room.trim()

    def close(self) -> None:
        """Close the database, so that another process may open it."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        if self._connector is not None:
            self._connector.close()
            self._connector = None

    def _result(self, status: Any) -> ObjectStatus:
        """Translate a status of AIBrix."""
        if status.is_ok():
            return ObjectStatus.OK
        if status.is_not_found():
            return ObjectStatus.MISSING
        if "No space left" in str(status):
            return self._counts.disk_full(status)
        return self._counts.io_error(status)
