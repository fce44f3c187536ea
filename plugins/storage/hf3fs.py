"""L3 in slabs on 3FS, through its user-space rings (USRBIO), from and into the arena itself."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.plugins.storage.sections import SHARED_MEMORY
from raydix.plugins.storage.slab import SlabName, SlabPlace
from raydix.plugins.storage.slab_folder import SlabFolder
from raydix.plugins.storage.usrbio import MAX_IOS, ExtentIo, UsrbioArena
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.batches import compare_length, move_in_parts
from raydix.runtime.storage.capacity.room import Reservation, Room
from raydix.runtime.storage.capacity.stored_bound import open_room
from raydix.runtime.storage.file_modes import OWNER_ALONE
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One object of a part of a batch, on its way between its page and its extent."""

    position: int
    ref: ObjectRef
    name: SlabName
    place: SlabPlace


class Hf3fsBackend:
    """Owns: the objects in the slabs below `path`, for one engine at a time.

    An operation under way cannot be called off: the 3FS client would go on writing into the page.
    So deadlines are minded before I/O is submitted, and what was submitted is waited for.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int | None,
        usrbio: Any = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        """`usrbio`: a module like `hf3fs_fuse.io`, the default. Raises ConfigError without it."""
        self._usrbio: Any = _import_usrbio() if usrbio is None else usrbio
        self._path = path
        self._max_bytes = max_bytes
        self._eviction = eviction
        self._clock = clock

        self._room = Room(max_bytes, self._remove, eviction)
        self._namespace = b""
        self._open_arena: UsrbioArena | None = None
        self._open_slabs: SlabFolder | None = None
        self._lock = threading.RLock()
        self._counts = BackendCounts("3FS")

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Share the arena with 3FS and read the index.

        Raises ConfigError if `path` or the arena does not allow it.
        """
        self._namespace = namespace.digest
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                OWNER_ALONE.make_folder(str(self._path))
                mount = self._usrbio.extract_mount_point(str(self._path))
                if mount is None:
                    raise ConfigError(
                        f"cache.l3.path {self._path} is not on a 3FS mount. Set it to a folder on "
                        "one."
                    )

                self._open_slabs = SlabFolder(self._path, self._usrbio)
                self._open_arena = UsrbioArena(self._usrbio, mount, arena)
                self._take_stock()
            except OSError as error:
                raise ConfigError(
                    f"cache.l3.path {self._path} cannot be used, or the arena is not in "
                    f"{SHARED_MEMORY}: {error}"
                ) from error
            undo.pop_all()

    def _take_stock(self) -> None:
        sizes = {str(name): place.size_bytes for name, place in self._slabs}
        self._room = open_room(
            self._path, self._max_bytes, sizes, self._remove, OWNER_ALONE, eviction=self._eviction
        )

    @property
    def _slabs(self) -> SlabFolder:
        assert self._open_slabs is not None, "the backend is not open"
        return self._open_slabs

    @property
    def _arena(self) -> UsrbioArena:
        assert self._open_arena is not None, "the backend is not open"
        return self._open_arena

    def _name(self, name: ObjectName) -> SlabName:
        return SlabName(self._namespace, name.group, name.key)

    def _remove(self, names: Sequence[str]) -> Sequence[str]:
        """Delete objects for the room. That never fails, though the log may not know of it."""
        with self._lock:
            self._slabs.remove(SlabName.parse(name) for name in names)
        return ()

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Answer from the index, without I/O."""
        with self._lock:
            return [
                ObjectStatus.OK if self._name(name) in self._slabs else ObjectStatus.MISSING
                for name in names
            ]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Read extents straight into the arena."""
        return self._move(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Write pages straight from the arena into extents without a name; then publish them."""
        return self._move(refs, deadline_s, self._put)

    def _move(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        move: Callable[[Sequence[ObjectRef]], list[ObjectStatus]],
    ) -> list[ObjectStatus]:
        def move_part(part: slice) -> list[ObjectStatus]:
            try:
                return move(refs[part])
            except OSError as error:
                return [self._counts.os_error(error)] * len(refs[part])

        return move_in_parts(len(refs), MAX_IOS, lambda: self._clock() >= deadline_s, move_part)

    def _get(self, refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses = [ObjectStatus.MISSING] * len(refs)
        transfers: list[_Transfer] = []
        with self._lock:
            for position, ref in enumerate(refs):
                name = self._name(ref.name)
                place = self._slabs.find(name)
                if place is None:
                    continue
                statuses[position] = compare_length(place.size_bytes, len(ref.page))
                if statuses[position] is ObjectStatus.OK:
                    self._slabs.start_read(place)
                    transfers.append(_Transfer(position, ref, name, place))

        # Without the lock: an extent that is read keeps its bytes, whatever becomes of its name.
        try:
            results = self._arena.read(self._ios(transfers))
        finally:
            with self._lock:
                for transfer in transfers:
                    self._slabs.end_read(transfer.place)

        for transfer, result in zip(transfers, results, strict=True):
            statuses[transfer.position] = self._status(
                result, transfer.place.size_bytes, ObjectStatus.TOO_SHORT
            )
        # The last object first: of a chain the tail is to be evicted before the head.
        self._room.touch(str(transfer.name) for transfer in reversed(transfers))
        self._counts.add("objects_read", statuses.count(ObjectStatus.OK))
        return statuses

    def _put(self, refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses = [ObjectStatus.OK] * len(refs)
        with self._lock:
            new = [
                position
                for position, ref in enumerate(refs)
                if self._name(ref.name) not in self._slabs
            ]

        refused = self._room.write_in_parts(
            new,
            lambda position: len(refs[position].page),
            lambda positions, reservation: self._write(refs, positions, reservation, statuses),
        )
        for position in refused:
            statuses[position] = ObjectStatus.FULL
        if refused:
            self._counts.add("store_full", len(refused))
        return statuses

    def _write(
        self,
        refs: Sequence[ObjectRef],
        positions: Sequence[int],
        reservation: Reservation,
        statuses: list[ObjectStatus],
    ) -> None:
        """Write objects for which there is room, and publish them. Amends `statuses`."""
        transfers: list[_Transfer] = []
        results: list[int] = []
        try:
            for position in positions:
                ref = refs[position]
                try:
                    with self._lock:
                        place = self._slabs.take_extent(len(ref.page))
                except OSError as error:
                    statuses[position] = self._counts.os_error(error)
                    continue
                transfers.append(_Transfer(position, ref, self._name(ref.name), place))
            results = self._arena.write(self._ios(transfers))
        finally:
            # Extents that were taken are given back even if no I/O began.
            results += [-errno.EIO] * (len(transfers) - len(results))
            self._publish(transfers, results, reservation)

        for transfer, result in zip(transfers, results, strict=True):
            statuses[transfer.position] = self._status(
                result, transfer.place.size_bytes, ObjectStatus.IO_ERROR
            )

    def _publish(
        self, transfers: Sequence[_Transfer], results: Sequence[int], reservation: Reservation
    ) -> None:
        """Enter what was written whole into the index and the room."""
        taken = [(transfer.name, transfer.place) for transfer in transfers]
        is_whole = [
            result == place.size_bytes for (_, place), result in zip(taken, results, strict=True)
        ]

        # In one piece: an object that were deleted in between would stay in the room.
        with self._lock:
            new = self._slabs.publish(taken, is_whole)
            self._room.settle(
                reservation, {str(name): place.size_bytes for name, place in reversed(new.items())}
            )
        self._counts.add("objects_written", len(new))

    def _ios(self, transfers: Sequence[_Transfer]) -> list[ExtentIo]:
        return [
            ExtentIo(
                arena_offset=transfer.ref.offset,
                size_bytes=transfer.place.size_bytes,
                fd=self._slabs.fd(transfer.place),
                file_offset=transfer.place.offset,
            )
            for transfer in transfers
        ]

    def _status(self, result: int, size_bytes: int, if_short: ObjectStatus) -> ObjectStatus:
        """The status of an object, by a result of USRBIO, bytes or -errno."""
        if result < 0:
            return self._counts.os_error(OSError(-result, os.strerror(-result)))
        return ObjectStatus.OK if result == size_bytes else if_short

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Take names off the index; who is reading an extent keeps its bytes."""
        with self._lock:
            return [self._delete(self._name(name)) for name in names]

    def _delete(self, name: SlabName) -> ObjectStatus:
        if name not in self._slabs:
            return ObjectStatus.MISSING
        self._forget([name])
        return ObjectStatus.OK

    def clear(self) -> ObjectStatus:
        """Take all names of the namespace off the index; the slab files keep their size."""
        with self._lock:
            self._forget([name for name, _ in self._slabs if name.namespace == self._namespace])
        return ObjectStatus.OK

    def _forget(self, names: Sequence[SlabName]) -> None:
        self._slabs.remove(names)
        self._room.forget(map(str, names))

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes; no times are kept."""
        with self._lock:
            places = [self._slabs.find(self._name(name)) for name in names]
        return [None if place is None else ObjectInfo(place.size_bytes, None) for place in places]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """Let what is known of their next use decide which objects go first."""
        self._room.retain((str(self._name(name)) for name in names), user, retention)

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces, and counters."""
        return self._room.figures() | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def check(self) -> None:
        """Raises AccountingError if extents, index and bytes on record disagree."""
        self._room.check()
        with self._lock:
            self._slabs.check()

    def tidy(self) -> bool:
        """Evict down to the low mark."""
        return self._room.trim()

    def close(self) -> None:
        """Take the arena back from 3FS and close all files."""
        if self._open_arena is not None:
            self._open_arena.close()
            self._open_arena = None
        if self._open_slabs is not None:
            self._open_slabs.close()
            self._open_slabs = None


def _import_usrbio() -> Any:
    try:
        from hf3fs_fuse import io
    except ImportError as error:
        raise ConfigError(
            f"cache.l3.backend hf3fs needs hf3fs_fuse and its extension ({error}): build them "
            "from 3FS"
        ) from error
    return io
