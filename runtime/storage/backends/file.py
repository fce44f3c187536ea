"""L3 in files: one object per file, published by rename, bounded by bytes."""

import contextlib
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.backends.file_transfers import FileTransfers, SystemCalls
from raydix.runtime.storage.backends.file_tree import FileTree, NewFiles
from raydix.runtime.storage.backends.writer_lock import WriterLock
from raydix.runtime.storage.batches import move_in_parts
from raydix.runtime.storage.capacity.room import Reservation, Room
from raydix.runtime.storage.capacity.stored_bound import open_room
from raydix.runtime.storage.file_modes import OWNER_ALONE, Modes
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace

STAMP_EVERY_S = 10.0
"""The interval at which the order of use goes to disk; a killed process loses so much of it."""

_FOLDER_IS_GONE = (
    "the model's folder is gone: bring its mount back, or have the folder made anew by "
    "raydix cache attach"
)


class FileBackend:
    """Owns: the objects below ROOT/<namespace, 16 hex>/<key, first 2 hex>/, and their bytes.

    `max_bytes` bounds all namespaces below ROOT that this user may read; beyond it the least
    recently used objects are evicted, and whoever is reading a file keeps its bytes. The order of
    use outlives a restart through the files' times. Nothing is synced: after a power loss a file
    may be short or zero, and fails verification. Engines may share ROOT; each counts only the files
    that it has seen. Without the namespace's folder, as when a mount is gone, every operation
    fails, and nothing is written to what lies below the mount point.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        transfers: FileTransfers | None = None,
        *,
        modes: Modes = OWNER_ALONE,
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        """`transfers`: what moves the bytes; None for system calls."""
        self._root = root
        self._tree = FileTree(root, modes)
        self._transfers = transfers or SystemCalls()
        self._max_bytes = max_bytes
        self._eviction = eviction
        self._clock = clock

        self._room = Room(max_bytes, self._remove, eviction)
        self._namespace: Namespace | None = None
        self._prefix = ""
        self._suffixes: list[str] = []
        self._writer: WriterLock | None = None
        self._lock = threading.Lock()
        self._temporary_ids = itertools.count()
        self._unstamped: list[tuple[int, Sequence[str]]] = []
        self._next_stamp_s = clock() + STAMP_EVERY_S
        self._counts = BackendCounts(f"storage in {root}")

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Make the folder, remove what dead writers left half written, and count what is there."""
        self._namespace = namespace
        self._prefix = f"{namespace.hex}/"
        num_groups = namespace.description.get("num_groups")
        self._suffixes = [".page"]
        if isinstance(num_groups, int) and num_groups > 1:
            self._suffixes = [f".g{group}.page" for group in range(num_groups)]

        with contextlib.ExitStack() as undo:
            try:
                self._tree.make_root()
                self._writer = WriterLock(self._root, self._tree.modes)
                undo.callback(self._writer.close)
                self._take_stock(self._writer)
                self._tree.make_namespace(namespace, self._temporary_suffix())
            except OSError as error:
                raise ConfigError(
                    f"cache.l3.path {self._root} cannot be used: {error.strerror} "
                    f"({error.filename}). Set it to a "
                    "folder that this user can write; to share one among users see cache.l3.access."
                ) from error
            self._transfers.open(arena)
            undo.pop_all()

    def _take_stock(self, writer: WriterLock) -> None:
        found = self._tree.sweep(writer, self._counts)
        sizes = {item.name: item.size_bytes for item in found}
        self._room = open_room(
            self._root,
            self._max_bytes,
            sizes,
            self._remove,
            self._tree.modes,
            eviction=self._eviction,
        )

    def _relative(self, name: ObjectName) -> str:
        key = name.key.hex()
        return f"{self._prefix}{key[:2]}/{key}{self._suffixes[name.group]}"

    def path(self, name: ObjectName) -> Path:
        """The file of an object, whether it exists or not."""
        return self._root / self._relative(name)

    def _temporary_suffix(self) -> str:
        """The suffix that makes temporaries of the paths of one batch."""
        assert self._writer is not None, "the backend is not open"
        return f".{self._writer.token}.{next(self._temporary_ids)}.tmp"

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Ask the file system, name by name; a file that it cannot tell about is no MISSING."""
        paths = [self._relative(name) for name in names]
        return self._without_lost(paths, [self._exists(path) for path in paths])

    def _exists(self, name: str) -> ObjectStatus:
        try:
            os.stat(self._tree.path(name))
        except OSError as error:
            return self._failure(error)
        return ObjectStatus.OK

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Read files straight into the arena."""
        return self._move(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Write each page to a temporary of its own and rename it."""
        return self._move(refs, deadline_s, self._put)

    def _move(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        move: Callable[[Sequence[str], Sequence[ObjectRef]], list[ObjectStatus]],
    ) -> list[ObjectStatus]:
        names = [self._relative(ref.name) for ref in refs]

        statuses = move_in_parts(
            len(refs),
            self._transfers.max_batch,
            lambda: self._clock() >= deadline_s,
            lambda part: move(names[part], refs[part]),
        )
        self._note_use(names, refs, statuses)
        return statuses

    def _note_use(
        self, names: Sequence[str], refs: Sequence[ObjectRef], statuses: Sequence[ObjectStatus]
    ) -> None:
        """Mark a chain as used, the last object first, and enter files of other engines."""
        ok = ObjectStatus.OK
        used = (
            [name for name, status in zip(names, statuses, strict=True) if status is ok]
            if any(statuses)
            else names
        )
        if unknown := self._room.touch(reversed(used)):
            sizes = {name: len(ref.page) for name, ref in zip(names, refs, strict=True)}
            self._room.add({name: sizes[name] for name in unknown})

        # The disk is told by `tidy`, when nobody waits.
        with self._lock:
            self._unstamped.append((time.time_ns(), used))

    def _get(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        results = self._transfers.read([self._tree.path(name) for name in names], refs)
        statuses = [
            self._failure(result) if isinstance(result, OSError) else result for result in results
        ]
        self._counts.add("objects_read", statuses.count(ObjectStatus.OK))
        return self._without_lost(names, statuses)

    def _failure(self, error: OSError) -> ObjectStatus:
        """The status of a file that is asked for, by the error that it raised."""
        if isinstance(error, FileNotFoundError):
            return ObjectStatus.MISSING
        return self._counts.os_error(error)

    def _without_lost(
        self, names: Sequence[str], statuses: list[ObjectStatus]
    ) -> list[ObjectStatus]:
        """Forget what is MISSING, for another engine has removed it.

        If the namespace's folder is out of reach, nothing in it is MISSING: all of that failed.
        """
        if ObjectStatus.MISSING not in statuses:
            return statuses
        missing = [
            name
            for name, status in zip(names, statuses, strict=True)
            if status is ObjectStatus.MISSING
        ]
        assert self._namespace is not None
        if self._tree.has_namespace(self._namespace):
            self._forget(missing)
            return statuses

        failure = self._counts.os_error(
            FileNotFoundError(errno.ENOENT, _FOLDER_IS_GONE, self._prefix)
        )
        return [failure if status is ObjectStatus.MISSING else status for status in statuses]

    def _forget(self, names: Iterable[str]) -> None:
        """Take files off the record that were not there, or are no more."""
        gone = self._room.known(names)
        self._room.forget(gone)

        # A writer may have published one meanwhile, and its bytes would count for nobody. One that
        # publishes from here on enters its file by itself.
        for name in gone:
            with contextlib.suppress(OSError):
                self._room.add({name: os.stat(self._tree.path(name)).st_size})

    def _put(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        # A name that this engine has not met is taken for new. Should another engine have written
        # it meanwhile, the rename puts its equal in its place, which costs less than asking for
        # every new page.
        is_there = {
            name for name in self._room.known(names) if os.access(self._tree.path(name), os.F_OK)
        }
        new = dict(zip(names, refs, strict=True))
        for name in is_there:
            del new[name]
        statuses = dict.fromkeys(names, ObjectStatus.OK)

        refused = self._room.write_in_parts(
            list(new.items()),
            lambda named: len(named[1].page),
            lambda part, reservation: self._write(part, reservation, statuses),
        )
        for name, _ in refused:
            statuses[name] = ObjectStatus.FULL
        self._counts.add("store_full", len(refused))
        return [statuses[name] for name in names]

    def _write(
        self,
        objects: Sequence[tuple[str, ObjectRef]],
        reservation: Reservation,
        statuses: dict[str, ObjectStatus],
    ) -> None:
        """Write objects to temporaries and publish them. Amends `statuses`, which are OK."""
        sizes = {name: len(ref.page) for name, ref in objects}
        with NewFiles(self._tree, self._temporary_suffix()) as new:
            try:
                results = self._transfers.write(new, list(sizes), [ref for _, ref in objects])
            finally:
                self._room.settle(reservation, {name: sizes[name] for name in new.published})
                self._counts.add("objects_written", len(new.published))

        if len(new.published) < len(sizes):
            for name, result in zip(sizes, results, strict=True):
                if isinstance(result, OSError):
                    statuses[name] = self._counts.os_error(result)

    def _remove(self, names: Sequence[str]) -> Sequence[str]:
        """Delete objects for the room; returns those that could not be."""
        errors = self._tree.remove(names)
        for error in errors.values():
            self._counts.os_error(error)
        return tuple(errors)

    def tidy(self) -> bool:
        """Evict down to the low mark, and write the order of use to the files' times."""
        try:
            return self._room.trim()
        finally:
            if self._clock() >= self._next_stamp_s:
                self._next_stamp_s = self._clock() + STAMP_EVERY_S
                self._stamp()

    def _stamp(self) -> None:
        with self._lock:
            batches, self._unstamped = self._unstamped, []

        # Only the last use of an object counts; in a batch the first object counts as used last.
        times = {name: used_ns - age for used_ns, used in batches for age, name in enumerate(used)}
        for name, time_ns in times.items():
            # One that is evicted, or another user's, stays as it is and counts as older.
            with contextlib.suppress(OSError):
                os.utime(self._tree.path(name), ns=(time_ns, time_ns))

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Unlink; whoever is reading a file keeps its bytes."""
        paths = [self._relative(name) for name in names]
        return self._without_lost(paths, [self._delete(path) for path in paths])

    def _delete(self, name: str) -> ObjectStatus:
        try:
            os.unlink(self._tree.path(name))
        except OSError as error:
            return self._failure(error)
        self._forget([name])
        return ObjectStatus.OK

    def clear(self) -> ObjectStatus:
        """Remove the namespace's objects; its folders and what is being written stay."""
        assert self._namespace is not None
        try:
            names = list(self._tree.objects_of(self._namespace))
        except OSError as error:
            return self._counts.os_error(error)
        stuck = set(self._remove(names))
        self._forget(name for name in names if name not in stuck)
        return ObjectStatus.IO_ERROR if stuck else ObjectStatus.OK

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell size and time of last use."""
        infos: list[ObjectInfo | None] = []
        for name in names:
            try:
                stat = self.path(name).stat()
                infos.append(ObjectInfo(stat.st_size, stat.st_mtime))
            except OSError:
                infos.append(None)
        return infos

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """Let what is known of their next use decide which objects go first."""
        self._room.retain(map(self._relative, names), user, retention)

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces that this engine knows of, and counters."""
        return self._room.figures() | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum over objects."""
        self._room.check()

    def close(self) -> None:
        """Write down the order of use, and end the transfers' use of the arena."""
        self._stamp()
        self._transfers.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
