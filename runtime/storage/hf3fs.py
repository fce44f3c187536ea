"""L3 in a slab on 3FS, through its user-space rings (USRBIO), from and into the arena's own memory."""

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.file_modes import OWNER_ALONE
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.room import Reservation, Room
from raydix.runtime.storage.slab import Slab, SlabIndex, SlabName, SlabPlace, slot_bytes_for
from raydix.runtime.storage.stored_bound import agree_on_bound
from raydix.runtime.storage.usrbio import MAX_IOS, SHARED_MEMORY, SlotIo, UsrbioArena

logger = logging.getLogger(__name__)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One object of a chunk on its way between its page and its slot."""

    position: int
    ref: ObjectRef
    name: SlabName
    place: SlabPlace


class Hf3fsBackend:
    """Owns: the slab files below `path` and what is in them, for one engine at a time.

    An operation under way cannot be called off: the 3FS client would go on writing into the page.
    Deadlines are minded before I/O is submitted; what was submitted is waited for.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int | None,
        usrbio: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`usrbio`: a module like `hf3fs_fuse.io`, which is the default. Raises ConfigError if that
        is not there.
        """
        self._usrbio: Any = _import_usrbio() if usrbio is None else usrbio
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._room = Room(max_bytes, self._remove)
        self._namespace = b""
        self._arena: UsrbioArena | None = None
        self._index: SlabIndex | None = None
        self._slabs: dict[int, Slab] = {}
        self._lock_fd = -1
        self._lock = threading.RLock()
        self._counters: Counter[str] = Counter()

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Share the arena with 3FS and read the index. Raises ConfigError if `path` or the arena
        does not allow it.
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
                        f"one."
                    )
                self._take_folder()
                self._arena = UsrbioArena(self._usrbio, mount, arena)
                self._read_index()
            except OSError as error:
                raise ConfigError(
                    f"cache.l3.path {self._path} cannot be used, or the arena is not in "
                    f"{SHARED_MEMORY}: {error}"
                ) from error
            undo.pop_all()

    def _take_folder(self) -> None:
        """Two engines that wrote one slab would overwrite each other's slots."""
        self._lock_fd = os.open(
            self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ALONE.file
        )
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"cache.l3.path {self._path} is in use by another engine. Give each engine a "
                f"folder of its own."
            ) from None

    def _read_index(self) -> None:
        self._index = SlabIndex(self._path / "index.log")
        sizes = {str(name): place.size_bytes for name, place in self._index}
        agree_on_bound(self._path, self._max_bytes, sum(sizes.values()), OWNER_ALONE)
        self._room = Room(self._max_bytes, self._remove)
        self._room.add(sizes)
        taken: dict[int, list[int]] = {}
        for _, place in self._index:
            taken.setdefault(place.slot_bytes, []).append(place.slot)
        for slot_bytes, slots in taken.items():
            self._slab(slot_bytes).claim(slots)
        self._room.enforce()

    def _slab(self, slot_bytes: int) -> Slab:
        if slot_bytes not in self._slabs:
            slab = Slab(self._path / f"slots-{slot_bytes}.slab", slot_bytes)
            try:
                self._usrbio.register_fd(slab.fd)
            except BaseException:
                slab.close()
                raise
            self._slabs[slot_bytes] = slab
        return self._slabs[slot_bytes]

    @property
    def _objects(self) -> SlabIndex:
        assert self._index is not None, "the backend is not open"
        return self._index

    @property
    def _shared_arena(self) -> UsrbioArena:
        assert self._arena is not None, "the backend is not open"
        return self._arena

    def _name(self, name: ObjectName) -> SlabName:
        return SlabName(self._namespace, name.group, name.key)

    def _remove(self, names: Sequence[str]) -> Sequence[str]:
        """For the room: take objects off the index.

        That never fails, though the log may not say so.
        """
        with self._lock:
            self._release(SlabName.parse(name) for name in names)
        return ()

    def _forget(self, names: Sequence[SlabName]) -> None:
        self._release(names)
        self._room.forget(map(str, names))

    def _release(self, names: Iterable[SlabName]) -> None:
        for place in self._objects.remove(name for name in names if name in self._objects):
            self._slabs[place.slot_bytes].give_back(place.slot)

    # Operations -----------------------------------------------------------------------------------

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """From the index, without I/O."""
        with self._lock:
            return [
                ObjectStatus.OK if self._name(name) in self._objects else ObjectStatus.MISSING
                for name in names
            ]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Read slots straight into the arena."""
        return self._in_chunks(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Write pages straight from the arena, each into a slot that no name points at; then
        publish.
        """
        return self._in_chunks(refs, deadline_s, self._put)

    def _in_chunks(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        move: Callable[[Sequence[ObjectRef]], list[ObjectStatus]],
    ) -> list[ObjectStatus]:
        statuses: list[ObjectStatus] = []
        for start in range(0, len(refs), MAX_IOS):
            chunk = refs[start : start + MAX_IOS]
            if self._clock() >= deadline_s:
                statuses += [ObjectStatus.TIMED_OUT] * len(chunk)
                continue
            try:
                statuses += move(chunk)
            except OSError as error:
                statuses += [self._failure(error.errno or errno.EIO)] * len(chunk)
        return statuses

    def _get(self, refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses = [ObjectStatus.MISSING] * len(refs)
        transfers: list[_Transfer] = []
        with self._lock:
            for position, ref in enumerate(refs):
                name = self._name(ref.name)
                place = self._objects.find(name)
                if place is None:
                    continue
                if place.size_bytes != len(ref.page):
                    is_short = place.size_bytes < len(ref.page)
                    statuses[position] = (
                        ObjectStatus.TOO_SHORT if is_short else ObjectStatus.WRONG_LENGTH
                    )
                    continue
                self._slabs[place.slot_bytes].start_read(place.slot)
                transfers.append(_Transfer(position, ref, name, place))
        try:
            results = self._shared_arena.read(self._ios(transfers))
        finally:
            with self._lock:
                for transfer in transfers:
                    self._slabs[transfer.place.slot_bytes].end_read(transfer.place.slot)
        for transfer, result in zip(transfers, results, strict=True):
            statuses[transfer.position] = self._status(
                result, transfer.place.size_bytes, ObjectStatus.TOO_SHORT
            )
        self._room.touch(str(transfer.name) for transfer in reversed(transfers))
        with self._lock:
            self._counters["objects_read"] += statuses.count(ObjectStatus.OK)
        return statuses

    def _put(self, refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses = [ObjectStatus.OK] * len(refs)
        with self._lock:
            waiting = [
                position
                for position, ref in enumerate(refs)
                if self._name(ref.name) not in self._objects
            ]
        while waiting:
            # What is being written cannot be given up for the rest; once it is there it can.
            with self._room.reserve(
                [len(refs[position].page) for position in waiting]
            ) as reservation:
                fitting = waiting[: len(reservation.sizes)]
                if fitting:
                    self._write(refs, fitting, reservation, statuses)
                else:
                    with self._lock:
                        self._counters["store_full"] += 1
                    statuses[waiting[0]] = ObjectStatus.FULL
            waiting = waiting[len(fitting) or 1 :]
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
                    place = self._take_slot(len(ref.page))
                except OSError as error:
                    statuses[position] = self._failure(error.errno or errno.EIO)
                    continue
                transfers.append(_Transfer(position, ref, self._name(ref.name), place))
            results = self._shared_arena.write(self._ios(transfers))
        finally:
            results += [-errno.EIO] * (len(transfers) - len(results))
            self._publish(transfers, results, reservation)
        for transfer, result in zip(transfers, results, strict=True):
            statuses[transfer.position] = self._status(
                result, transfer.place.size_bytes, ObjectStatus.IO_ERROR
            )

    def _take_slot(self, size_bytes: int) -> SlabPlace:
        """A slot that no name points at. Raises OSError."""
        slot_bytes = slot_bytes_for(size_bytes)
        with self._lock:
            return SlabPlace(slot_bytes, self._slab(slot_bytes).take(), size_bytes)

    def _publish(
        self, transfers: Sequence[_Transfer], results: Sequence[int], reservation: Reservation
    ) -> None:
        """Enter what was written whole and not by another writer meanwhile; give the other slots
        back.
        """
        new: dict[SlabName, SlabPlace] = {}
        with self._lock:
            try:
                for transfer, result in zip(transfers, results, strict=True):
                    is_new = transfer.name not in self._objects and transfer.name not in new
                    if is_new and result == transfer.place.size_bytes:
                        new[transfer.name] = transfer.place
                self._objects.add(new.items())
            except BaseException:
                new.clear()
                raise
            finally:
                for transfer in transfers:
                    if new.get(transfer.name) != transfer.place:
                        self._slabs[transfer.place.slot_bytes].give_back(transfer.place.slot)
            self._room.settle(
                reservation, {str(name): place.size_bytes for name, place in reversed(new.items())}
            )
            self._counters["objects_written"] += len(new)

    def _ios(self, transfers: Sequence[_Transfer]) -> list[SlotIo]:
        return [
            SlotIo(
                arena_offset=transfer.ref.offset,
                size_bytes=transfer.place.size_bytes,
                fd=self._slabs[transfer.place.slot_bytes].fd,
                file_offset=transfer.place.offset,
            )
            for transfer in transfers
        ]

    def _status(self, result: int, size_bytes: int, if_short: ObjectStatus) -> ObjectStatus:
        """What a result of USRBIO, bytes or -errno, says of an object."""
        if result < 0:
            return self._failure(-result)
        return ObjectStatus.OK if result == size_bytes else if_short

    def _failure(self, code: int) -> ObjectStatus:
        with self._lock:
            if code in _DISK_FULL:
                self._counters["disk_full"] += 1
                return ObjectStatus.FULL
            if not self._counters["io_errors"]:
                logger.warning("3FS: %s; further errors are only counted", os.strerror(code))
            self._counters["io_errors"] += 1
        return ObjectStatus.IO_ERROR

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Take names off the index; who is reading a slot keeps its bytes."""
        with self._lock:
            return [self._delete(self._name(name)) for name in names]

    def _delete(self, name: SlabName) -> ObjectStatus:
        if name not in self._objects:
            return ObjectStatus.MISSING
        self._forget([name])
        return ObjectStatus.OK

    def clear(self) -> ObjectStatus:
        """Take all names of the namespace off the index; the slab files keep their size."""
        with self._lock:
            self._forget([name for name, _ in self._objects if name.namespace == self._namespace])
        return ObjectStatus.OK

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Sizes; no times are kept."""
        with self._lock:
            places = [self._objects.find(self._name(name)) for name in names]
        return [None if place is None else ObjectInfo(place.size_bytes, None) for place in places]

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces, and counters."""
        with self._lock:
            return self._room.figures() | self._counters

    def check(self) -> None:
        """Raises AccountingError if slots, index and bytes on record disagree."""
        self._room.check()
        with self._lock:
            for slab in self._slabs.values():
                slab.check()

    def tidy(self) -> bool:
        """Evict down to the low mark."""
        return self._room.trim()

    def close(self) -> None:
        """Take the arena back from 3FS and close all files."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        for slab in self._slabs.values():
            self._usrbio.deregister_fd(slab.fd)
            slab.close()
        self._slabs = {}
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _import_usrbio() -> Any:
    try:
        from hf3fs_fuse import io
    except ImportError as error:
        raise ConfigError(
            f"cache.l3.backend hf3fs needs hf3fs_fuse and its extension ({error}): build them "
            f"from 3FS"
        ) from error
    return io
