"""L3 in files: one object per file, published by rename, bounded by bytes."""

import contextlib
import errno
import itertools
import json
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.bytes_lru import BytesLru
from raydix.runtime.storage.file_transfers import FileTransfers, SystemCalls
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_TEMPORARY = re.compile(r"\.(?P<pid>\d+)\.(?P<started>\d+)\.\d+\.tmp$")
_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STAMP_EVERY_S = 10.0
"""Between two times at which the order of use is written to the disk; a process that is killed loses so much of it."""


def _start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is no such process. Pids alone are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


class FileBackend:
    """Owns: the files below ROOT/<namespace, 16 hex>/<key, first 2 hex>/, and how many bytes they take.

    `max_bytes` spans all namespaces below ROOT; beyond it the least recently used objects go; who is reading a file
    keeps its bytes. Order of use outlives a restart through the files' times. Nothing is synced: after a power loss a
    file may be short or zero, and fails verification. Engines may share ROOT; each counts only the files it has seen.
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
        self._prefix = ""
        self._suffixes: list[str] = []
        self._lock = threading.Lock()
        self._temporary_ids = itertools.count(time.monotonic_ns())  # other ones in each backend of this process
        self._unstamped: list[tuple[int, list[str]]] = []
        self._next_stamp_s = clock() + STAMP_EVERY_S
        self._counters: Counter[str] = Counter()
        self._owner = f"{os.getpid()}.{_start_ticks(os.getpid())}"

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Make the folder, remove what dead processes left half written, and count what is there."""
        self._namespace = namespace
        self._prefix = f"{namespace.hex}/"
        num_groups = namespace.description.get("num_groups")
        self._suffixes = [".page"]
        if isinstance(num_groups, int) and num_groups > 1:
            self._suffixes = [f".g{group}.page" for group in range(num_groups)]
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
        temporary = folder / f"manifest{self._temporary_suffix()}"
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
        self._lru.add({name: size_bytes for _, name, size_bytes in sorted(found)})
        self._evict(self._lru.reserve([0])[1])

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
        return f"{self._prefix}{key[:2]}/{key}{self._suffixes[name.group]}"

    def path(self, name: ObjectName) -> Path:
        """The file of an object, whether it exists or not."""
        return self._root / self._relative(name)

    def _temporary_suffix(self) -> str:
        """What makes temporaries of the paths of a batch."""
        return f".{self._owner}.{next(self._temporary_ids)}.tmp"

    # Operations ------------------------------------------------------------------------------------------------

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """One look at the file system per name."""
        is_there = (os.access(self._root_text + self._relative(name), os.F_OK) for name in names)
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
            if self._clock() < deadline_s:
                statuses += operation(names[group], refs[group])
            else:
                statuses += [ObjectStatus.TIMED_OUT] * len(names[group])
        self._note_use(names, refs, statuses)
        return statuses

    def _note_use(self, names: Sequence[str], refs: Sequence[ObjectRef], statuses: Sequence[ObjectStatus]) -> None:
        """Mark a chain as used, the last object first; files of another engine are entered. `tidy` tells the disk."""
        ok = ObjectStatus.OK
        used = [name for name, status in zip(names, statuses, strict=True) if status is ok]
        with self._lock:
            if unknown := self._lru.touch(reversed(used)):
                sizes = {name: len(ref.page) for name, ref in zip(names, refs, strict=True)}
                self._lru.add({name: sizes[name] for name in unknown})
            self._unstamped.append((time.time_ns(), used))

    def _get(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        root, flags = self._root_text, os.O_RDONLY | os.O_CLOEXEC
        fds: list[int] = []
        not_open: dict[int, ObjectStatus] = {}
        for index, name in enumerate(names):
            try:
                fds.append(os.open(root + name, flags))
            except OSError as error:
                not_open[index] = self._failure(error)
        if not_open:
            refs = [ref for index, ref in enumerate(refs) if index not in not_open]
        results = self._transfers.read(fds, refs) if fds else []
        for fd in fds:
            os.close(fd)
        statuses = [self._failure(result) if isinstance(result, OSError) else result for result in results]
        self._count("objects_read", statuses.count(ObjectStatus.OK))
        for index, status in not_open.items():
            statuses.insert(index, status)
        return statuses

    def _put(self, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        with self._lock:
            known = {name for name in names if name in self._lru}
        # Names that this engine has not met are not looked for. Should another engine have written one meanwhile, the
        # rename puts its equal in its place, which costs less than looking for every new page.
        is_there = {name for name in known if os.access(self._root_text + name, os.F_OK)}
        new = {name: ref for name, ref in zip(names, refs, strict=True) if name not in is_there}
        statuses = dict.fromkeys(names, ObjectStatus.OK)
        waiting = list(new.items())
        while waiting:
            # What is being written cannot be given up for the rest; once it is there it can.
            num_fitting = self._reserve([len(ref.page) for _, ref in waiting])
            if num_fitting:
                self._write(waiting[:num_fitting], statuses)
            else:
                self._count("store_full")
                statuses[waiting[0][0]] = ObjectStatus.FULL
            waiting = waiting[num_fitting or 1 :]
        return [statuses[name] for name in names]

    def _reserve(self, sizes: Sequence[int]) -> int:
        """Hold room for the first of some objects; returns for how many."""
        with self._lock:
            num_fitting, victims = self._lru.reserve(sizes)
        self._evict(victims)
        return num_fitting

    def _write(self, objects: Sequence[tuple[str, ObjectRef]], statuses: dict[str, ObjectStatus]) -> None:
        """Write objects for which there is room to temporaries, and publish them. Amends `statuses`, which are OK."""
        root, suffix = self._root_text, self._temporary_suffix()
        sizes = {name: len(ref.page) for name, ref in objects}
        fds: list[int] = []
        begun: list[tuple[str, ObjectRef]] = []
        written: dict[str, int] = {}
        try:
            for name, ref in objects:
                try:
                    fds.append(_create(root + name + suffix))
                    begun.append((name, ref))
                except OSError as error:
                    statuses[name] = self._failure(error)
            results = self._transfers.write(fds, [ref for _, ref in begun]) if fds else []
            for fd, (name, _), result in zip(fds, begun, results, strict=True):
                os.close(fd)
                try:
                    if isinstance(result, OSError):
                        raise result
                    os.rename(root + name + suffix, root + name)
                    written[name] = sizes[name]
                except OSError as error:
                    _unlink(root + name + suffix)
                    statuses[name] = self._failure(error)
        finally:
            with self._lock:
                self._lru.release(sum(sizes.values()))
                self._lru.add(written)
                self._counters["objects_written"] += len(written)

    def _evict(self, victims: Sequence[str]) -> None:
        for name in victims:
            _unlink(self._root_text + name)
        self._count("objects_evicted", len(victims))

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counters[name] += amount

    def _failure(self, error: OSError) -> ObjectStatus:
        if isinstance(error, FileNotFoundError):
            return ObjectStatus.MISSING
        if error.errno in _DISK_FULL:
            self._count("disk_full")
            return ObjectStatus.FULL
        if not self._counters["io_errors"]:
            logger.warning("storage in %s: %s; further errors are only counted", self._root, error)
        self._count("io_errors")
        return ObjectStatus.IO_ERROR

    # What nobody waits for -------------------------------------------------------------------------------------

    def tidy(self) -> bool:
        """Evict down to the low mark, and write the order of use to the files' times."""
        with self._lock:
            victims = self._lru.trim()
        self._evict(victims)
        if self._clock() >= self._next_stamp_s:
            self._next_stamp_s = self._clock() + STAMP_EVERY_S
            self._stamp()
        return bool(victims)

    def _stamp(self) -> None:
        with self._lock:
            batches, self._unstamped = self._unstamped, []
        # Only the last use of an object counts; within a batch the first object counts as used last.
        times = {name: used_ns - age for used_ns, used in batches for age, name in enumerate(used)}
        for name, time_ns in times.items():
            with contextlib.suppress(OSError):  # evicted, or another user's: then it counts as older than it is
                os.utime(self._root_text + name, ns=(time_ns, time_ns))

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Unlink; who is reading a file keeps its bytes."""
        statuses = []
        for name in map(self._relative, names):
            with self._lock:
                self._lru.remove(name)
            try:
                os.unlink(self._root_text + name)
                statuses.append(ObjectStatus.OK)
            except OSError as error:
                statuses.append(self._failure(error))
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
                status = self._failure(error)
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
        """Write down the order of use, and end the transfers' use of the arena."""
        self._stamp()
        self._transfers.close()


def _create(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
