"""The folders of the file backend: what is there, and files that appear whole or not at all."""

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from raydix.runtime.storage.backend_counts import DISK_FULL, BackendCounts
from raydix.runtime.storage.backends.writer_lock import ABANDONED_S, WriterLock
from raydix.runtime.storage.file_modes import Modes
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_TEMPORARY = re.compile(r"\.(?P<writer>[0-9a-f]{16})\.\d+\.tmp$")
_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_OBJECT_SUFFIX = ".page"


class FoundObject(NamedTuple):
    """An object that was there when the backend was opened."""

    used_ns: int
    name: str
    size_bytes: int


class FileTree:
    """Owns: the folders ROOT/<namespace, 16 hex>/<key, first 2 hex>/.

    Files are named by their paths below ROOT. Folders stay once they are made: no writer finds its
    folder gone.
    """

    def __init__(self, root: Path, modes: Modes) -> None:
        self.root = root
        self.modes = modes
        self._prefix = f"{root}/"  # pathlib takes longer than the system calls

    def path(self, name: str) -> str:
        """The path of a file, whether it exists or not."""
        return self._prefix + name

    def make_root(self) -> None:
        """Make ROOT, unless somebody has. Raises OSError."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.modes.make_folder(str(self.root))

    def make_namespace(self, namespace: Namespace, suffix: str) -> None:
        """Make its folder, and describe it for people. `suffix`: of temporaries. Raises OSError."""
        self.modes.make_folder(self.path(namespace.hex))
        # A full disk may still be read.
        try:
            self._describe(namespace, suffix)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise

        # All of them now: to make one takes as long as to write some small files. Whoever writes
        # makes the folder that is missing.
        with contextlib.suppress(OSError):
            for first in range(256):
                self.modes.make_folder(self.path(f"{namespace.hex}/{first:02x}"))

    def _describe(self, namespace: Namespace, suffix: str) -> None:
        fields = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in namespace.description.items()
        }
        manifest = f"{namespace.hex}/manifest.json"
        with NewFiles(self, suffix) as new:
            os.write(new.create(manifest), json.dumps(fields, indent=2).encode() + b"\n")
            new.publish(manifest)

    def has_namespace(self, namespace: Namespace) -> bool:
        """Whether the namespace's folder is there, so that what is not in it is missing.

        Without the folder ROOT is not what it was, or out of reach.
        """
        return os.path.isdir(self.path(namespace.hex))

    def create(self, name: str) -> int:
        """A new file, open to be written.

        Makes its folder, but never its namespace's. Raises OSError.
        """
        path = self.path(name)
        try:
            return self.modes.create(path)
        except FileNotFoundError:
            self.modes.make_folder(os.path.dirname(path))
            return self.modes.create(path)

    def sweep(self, writer: WriterLock, counts: BackendCounts) -> list[FoundObject]:
        """Remove temporaries of dead writers. Returns all objects, the least recently used first.

        Others may remove and write files meanwhile. What this user may not read is passed over, and
        counted.
        """
        found: list[FoundObject] = []
        abandoned_s = writer.now_s() - ABANDONED_S

        with writer.dead_writers() as dead:
            for name, entry in self._files(counts):
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue

                temporary = _TEMPORARY.search(name)
                if temporary is None:
                    if name.endswith(_OBJECT_SUFFIX):
                        found.append(FoundObject(stat.st_mtime_ns, name, stat.st_size))
                elif temporary["writer"] in dead or stat.st_mtime < abandoned_s:
                    unlink_quietly(entry.path)
                    counts.add("temporaries_swept")
        return sorted(found)

    def _files(self, counts: BackendCounts) -> Iterator[tuple[str, os.DirEntry[str]]]:
        for namespace in _entries(str(self.root)):
            is_folder = namespace.is_dir(follow_symlinks=False)
            if not _NAMESPACE.fullmatch(namespace.name) or not is_folder:
                continue

            try:
                for entry in _entries(namespace.path):
                    if entry.is_dir(follow_symlinks=False):
                        for file in _entries(entry.path):
                            yield f"{namespace.name}/{entry.name}/{file.name}", file
                    else:
                        yield f"{namespace.name}/{entry.name}", entry
            except PermissionError as error:
                counts.add("namespaces_unreadable")
                logger.warning(
                    "%s is another user's: what it holds is not bounded by cache.l3.max_bytes here",
                    error,
                )

    def objects_of(self, namespace: Namespace) -> Iterator[str]:
        """The names of a namespace's objects. Raises FileNotFoundError without its folder."""
        for entry in list(os.scandir(self.path(namespace.hex))):
            if not entry.is_dir(follow_symlinks=False):
                continue
            for file in _entries(entry.path):
                if file.name.endswith(_OBJECT_SUFFIX):
                    yield f"{namespace.hex}/{entry.name}/{file.name}"

    def remove(self, names: Sequence[str]) -> Mapping[str, OSError]:
        """Unlink files; returns the errors of those that are still there.

        Whoever is reading a file keeps its bytes.
        """
        errors: dict[str, OSError] = {}
        for name in names:
            try:
                os.unlink(self._prefix + name)
            except FileNotFoundError:
                continue
            except OSError as error:
                errors[name] = error
        return errors


class NewFiles:
    """Owns: files that are being written, until they are published or the `with` block ends."""

    def __init__(self, tree: FileTree, suffix: str) -> None:
        """`suffix` makes temporaries of the names of one batch."""
        self._tree = tree
        self._suffix = suffix
        self._fds: dict[str, int] = {}
        self.published: list[str] = []
        """The names of the files that are there now."""

    def __enter__(self) -> Self:
        return self

    def create(self, name: str) -> int:
        """Begin a file; its descriptor stays this object's. Raises OSError."""
        fd = self._fds[name] = self._tree.create(name + self._suffix)
        return fd

    def publish(self, name: str) -> None:
        """Give a file, which is written whole, its name.

        Raises OSError, and then there is no such file.
        """
        self._finish(self._fds.pop(name), name)

    def write(self, name: str, content: memoryview) -> None:
        """Create a file, write and publish it. Raises OSError, and then there is no such file."""
        fd = self._tree.create(name + self._suffix)
        try:
            write_all(fd, content)
        except BaseException:
            self._drop(fd, name)
            raise
        self._finish(fd, name)

    def _finish(self, fd: int, name: str) -> None:
        path = self._tree.path(name)
        try:
            # Some file systems tell only here that the disk is full.
            os.close(fd)
            os.rename(path + self._suffix, path)
        except OSError:
            unlink_quietly(path + self._suffix)
            raise
        self.published.append(name)

    def _drop(self, fd: int, name: str) -> None:
        close_quietly(fd)
        unlink_quietly(self._tree.path(name + self._suffix))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, fd in self._fds.items():
            self._drop(fd, name)
        self._fds.clear()


def write_all(fd: int, content: memoryview) -> None:
    """Write from the beginning of a file until all of `content` is there. Raises OSError."""
    done = os.pwrite(fd, content, 0)
    while done < len(content):
        done += os.pwrite(fd, content[done:], done)


def close_quietly(fd: int) -> None:
    """Close a descriptor, whatever comes of it; Linux closes it even if it reports an error."""
    try:  # noqa: SIM105  which takes half the time of suppress
        os.close(fd)
    except OSError:
        pass


def unlink_quietly(path: str) -> None:
    """Remove a temporary; what cannot be removed is swept at a later start."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none if it has gone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        raise
