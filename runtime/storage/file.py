"""L3 in files: one object per file, published by rename, bounded by bytes."""

import errno
import json
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.bytes_lru import BytesLru
from raydix.runtime.storage.file_transfers import FileTransfers, Piece, SystemCalls
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_TEMPORARY = re.compile(r"\.(?P<pid>\d+)\.(?P<started>\d+)\.\d+\.tmp$")
_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is no such process. Pids alone are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


class FileBackend:
    """Owns: the files below ROOT/<namespace, 16 hex>/<key, first 2 hex>/, and how many bytes they take.

    `max_bytes` spans all namespaces below ROOT; beyond it the least recently used objects go, never one in use.
    Order of use outlives a restart through the files' times. Nothing is synced: after a power loss a file may be
    short or zero, and fails verification. Engines may share ROOT; each counts only the files it has seen.
    """

    def __init__(
        self,
        root: Path,
        max_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        transfers: FileTransfers | None = None,
    ) -> None:
        """`transfers`: what moves the bytes; None: system calls."""
        self._root = root
        self._root_text = f"{root}/"  # pathlib takes longer than the system calls
        self._transfers = transfers or SystemCalls()
        self._lru = BytesLru(max_bytes)
        self._max_bytes = max_bytes
        self._clock = clock
        self._namespace: Namespace | None = None
        self._namespace_hex = ""
        self._has_groups = False
        self._lock = threading.RLock()
        self._next_temporary = 0
        self._counters: Counter[str] = Counter()
        self._owner = f"{os.getpid()}.{_start_ticks(os.getpid())}"

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Make the folder, remove what dead processes left half written, and count what is there."""
        self._namespace = namespace
        self._namespace_hex = namespace.hex
        num_groups = namespace.description.get("num_groups")
        self._has_groups = isinstance(num_groups, int) and num_groups > 1
        folder = self._root / namespace.hex
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write_manifest(folder)
            self._scan()
        except OSError as error:
            raise ConfigError(
                f"cache.l3.path {self._root} cannot be used: {error.strerror}. Set it to a folder that can be written."
            ) from error
        self._transfers.open(arena)

    def _write_manifest(self, folder: Path) -> None:
        assert self._namespace is not None
        fields = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in self._namespace.description.items()
        }
        temporary = folder / self._temporary_name("manifest")
        temporary.write_text(json.dumps(fields, indent=2) + "\n")
        temporary.rename(folder / "manifest.json")

    def _scan(self) -> None:
        """Enter existing objects, oldest first, and sweep temporaries whose process has ended."""
        found: list[tuple[int, str, int]] = []
        for entry in self._walk():
            temporary = _TEMPORARY.search(entry.name)
            if temporary is not None:
                if _start_ticks(int(temporary["pid"])) != int(temporary["started"]):
                    Path(entry.path).unlink(missing_ok=True)
                    self._count("temporaries_swept")
            elif entry.name.endswith(".page"):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # another engine has evicted it
                found.append((stat.st_mtime_ns, os.path.relpath(entry.path, self._root), stat.st_size))
        for _, name, size_bytes in sorted(found):
            self._lru.add(name, size_bytes)
        self._unlink(self._lru.make_room(0) or [])

    def _walk(self) -> Iterator[os.DirEntry[str]]:
        for namespace in os.scandir(self._root):
            if not _NAMESPACE.fullmatch(namespace.name) or not namespace.is_dir():
                continue
            for entry in os.scandir(namespace.path):
                if entry.is_dir():
                    yield from os.scandir(entry.path)
                else:
                    yield entry

    # Names -----------------------------------------------------------------------------------------------------

    def _relative(self, name: ObjectName) -> str:
        key = name.key.hex()
        suffix = f".g{name.group}" if self._has_groups else ""
        return f"{self._namespace_hex}/{key[:2]}/{key}{suffix}.page"

    def path(self, name: ObjectName) -> Path:
        """The file of an object, whether it exists or not."""
        return self._root / self._relative(name)

    def _temporary_name(self, stem: str) -> str:
        with self._lock:
            self._next_temporary += 1
            return f".{stem}.{self._owner}.{self._next_temporary}.tmp"

    # Operations ------------------------------------------------------------------------------------------------

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """One look at the file system per name."""
        is_there = (os.path.exists(self._root_text + self._relative(name)) for name in names)
        return [ObjectStatus.OK if there else ObjectStatus.MISSING for there in is_there]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Read files straight into the arena."""
        return self._in_groups(refs, deadline_s, self._get)

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Write each page to a temporary of its own and rename it."""
        return self._in_groups(refs, deadline_s, self._put)

    def _in_groups(
        self,
        refs: Sequence[ObjectRef],
        deadline_s: float,
        operation: Callable[[Sequence[str], Sequence[ObjectRef]], list[ObjectStatus]],
    ) -> list[ObjectStatus]:
        names = [self._relative(ref.name) for ref in refs]
        statuses: list[ObjectStatus] = []
        for start in range(0, len(refs), self._transfers.max_batch):
            group = slice(start, start + self._transfers.max_batch)
            if self._clock() >= deadline_s:
                statuses += [ObjectStatus.TIMED_OUT] * len(refs[group])
                continue
            with self._lock:
                for name in names[group]:
                    self._lru.acquire(name)
            try:
                statuses += operation(names[group], refs[group])
            finally:
                with self._lock:
                    for name in names[group]:
                        self._lru.release(name)
        self._touch([name for name, status in zip(names, statuses, strict=True) if status is ObjectStatus.OK])
        return statuses

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counters[name] += amount

    def _failure(self, name: str, error: OSError) -> ObjectStatus:
        if isinstance(error, FileNotFoundError):
            return ObjectStatus.MISSING
        if error.errno in _DISK_FULL:
            self._count("disk_full")
            return ObjectStatus.FULL
        if not self._counters["io_errors"]:
            logger.warning("storage file %s: %s; further errors are only counted", name, error)
        self._count("io_errors")
        return ObjectStatus.IO_ERROR

    def _touch(self, names: Sequence[str]) -> None:
        """Mark a chain as used, the last object first, in memory and on disk."""
        with self._lock:
            self._lru.touch(reversed(names))
        now_ns = time.time_ns()
        for age, name in enumerate(names):
            try:
                os.utime(self._root_text + name, ns=(now_ns, now_ns - age))
            except FileNotFoundError:
                continue

    def _get(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses: list[ObjectStatus] = []
        pieces: dict[int, Piece] = {}
        for index, (name, ref) in enumerate(zip(names, refs, strict=True)):
            try:
                fd = os.open(self._root_text + name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                statuses.append(self._failure(name, error))
                continue
            pieces[index] = Piece(fd, ref.page, ref.offset)
            statuses.append(ObjectStatus.OK)
        results = self._transfers.read(list(pieces.values())) if pieces else []
        num_read = 0
        with self._lock:
            for (index, piece), result in zip(pieces.items(), results, strict=True):
                os.close(piece.fd)
                if result is ObjectStatus.OK:
                    num_read += 1
                    if names[index] not in self._lru:
                        self._lru.add(names[index], len(piece.page))  # written by another engine
                else:
                    statuses[index] = self._failure(names[index], result) if isinstance(result, OSError) else result
            self._counters["objects_read"] += num_read
        return statuses

    def _put(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        statuses: dict[str, ObjectStatus] = {}
        begun: dict[str, tuple[str, Piece]] = {}
        for name, ref in zip(names, refs, strict=True):
            if name in statuses or name in begun:
                continue
            if os.path.exists(self._root_text + name):
                statuses[name] = ObjectStatus.OK
                continue
            temporary = self._reserve(name, len(ref.page))
            if temporary is None and begun:
                # What is being written cannot be evicted; once it is there it can.
                statuses |= self._finish(begun)
                begun = {}
                temporary = self._reserve(name, len(ref.page))
            if temporary is None:
                self._count("store_full")
                statuses[name] = ObjectStatus.FULL
                continue
            try:
                begun[name] = (temporary, Piece(self._create(temporary), ref.page, ref.offset))
            except OSError as error:
                statuses[name] = self._failure(name, error)
                self._forget(temporary)
        statuses |= self._finish(begun)
        return [statuses[name] for name in names]

    def _finish(self, begun: Mapping[str, tuple[str, Piece]]) -> dict[str, ObjectStatus]:
        """Write temporaries and publish them."""
        statuses: dict[str, ObjectStatus] = {}
        results = self._transfers.write([piece for _, piece in begun.values()]) if begun else []
        for (name, (temporary, piece)), result in zip(begun.items(), results, strict=True):
            os.close(piece.fd)
            statuses[name] = self._publish(temporary, name, len(piece.page), result)
        return statuses

    def _reserve(self, name: str, size_bytes: int) -> str | None:
        """Make room for an object and name its temporary, which takes up that room; None if there is too little."""
        folder, _, file = name.rpartition("/")
        temporary = f"{folder}/{self._temporary_name(file.removesuffix('.page'))}"
        with self._lock:
            victims = self._lru.make_room(size_bytes)
            if victims is None:
                return None
            self._unlink(victims)
            self._count("objects_evicted", len(victims))
            self._lru.add(temporary, size_bytes)
            self._lru.acquire(temporary)
        return temporary

    def _create(self, temporary: str) -> int:
        path = self._root_text + temporary
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o644)

    def _publish(self, temporary: str, name: str, size_bytes: int, result: ObjectStatus | OSError) -> ObjectStatus:
        try:
            if isinstance(result, OSError):
                raise result
            os.rename(self._root_text + temporary, self._root_text + name)
            with self._lock:
                self._lru.add(name, size_bytes)
        except OSError as error:
            self._unlink([temporary])
            return self._failure(name, error)
        finally:
            self._forget(temporary)
        self._count("objects_written")
        return ObjectStatus.OK

    def _forget(self, temporary: str) -> None:
        """Give back the room of a temporary."""
        with self._lock:
            self._lru.remove(temporary)
            self._lru.release(temporary)

    def _unlink(self, names: Sequence[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Unlink; who is reading a file keeps its bytes."""
        statuses = []
        for name in map(self._relative, names):
            with self._lock:
                self._lru.remove(name)
            try:
                os.unlink(self._root / name)
                statuses.append(ObjectStatus.OK)
            except OSError as error:
                statuses.append(self._failure(name, error))
        return statuses

    def clear(self) -> ObjectStatus:
        """Remove the namespace's folders of objects; the manifest stays."""
        assert self._namespace is not None
        folder = self._root / self._namespace.hex
        status = ObjectStatus.OK
        for entry in list(os.scandir(folder)):
            if not entry.is_dir():
                continue
            with self._lock:
                for file in os.scandir(entry.path):
                    self._lru.remove(os.path.relpath(file.path, self._root))
            try:
                shutil.rmtree(entry.path)
            except OSError as error:
                status = self._failure(entry.path, error)
        return status

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Size and time of last use."""
        infos: list[ObjectInfo | None] = []
        for name in names:
            try:
                stat = self.path(name).stat()
                infos.append(ObjectInfo(stat.st_size, stat.st_mtime))
            except OSError:
                infos.append(None)
        return infos

    def stats(self) -> dict[str, int]:
        """Objects and bytes of all namespaces that this engine knows of, and counters."""
        with self._lock:
            known = {"objects": len(self._lru), "bytes": self._lru.total_bytes, "max_bytes": self._max_bytes or 0}
            return known | self._counters

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum over objects."""
        with self._lock:
            self._lru.check()

    def close(self) -> None:
        """End the transfers' use of the arena."""
        self._transfers.close()
