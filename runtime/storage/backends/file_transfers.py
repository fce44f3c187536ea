"""How bytes get between files and the arena: the interface, and plain system calls."""

import os
from collections.abc import Sequence
from typing import Protocol

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.backends.file_tree import NewFiles, close_quietly

Result = ObjectStatus | OSError
"""The result for one file: OK, TOO_SHORT, WRONG_LENGTH, or its error."""


class FileTransfers(Protocol):
    """Moves whole files. Thread-safe.

    Results are one per file. No page is touched, and no descriptor is open, after a method has
    returned.
    """

    max_batch: int
    """The most files that a call may name."""

    def open(self, arena: memoryview) -> None:
        """Prepare for pages of `arena`. Raises ConfigError if that cannot work."""
        ...

    def read(self, paths: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Fill each page from its file, which must have the page's length."""
        ...

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Write each page to a new file and publish it."""
        ...

    def close(self) -> None:
        """Let go of the arena."""
        ...


class SystemCalls:
    """`preadv` and `pwrite`, a file at a time from its opening to its end.

    What the kernel and the processor know of a file is used while it is at hand: to open all files
    of a batch first takes longer.
    """

    max_batch = 64

    def open(self, arena: memoryview) -> None:
        """Do nothing: no arena has to be known beforehand."""

    def read(self, paths: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Read each file to its end."""
        return [_read_file(path, page) for path, (_, page, _) in zip(paths, refs, strict=True)]

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        """Write until each page is on file."""
        return [
            _write_file(new, name, page) for name, (_, page, _) in zip(names, refs, strict=True)
        ]

    def close(self) -> None:
        """Do nothing: nothing is held."""


_BEYOND = bytearray(1)
_READ = os.O_RDONLY | os.O_CLOEXEC


def _read_file(path: str, page: memoryview) -> Result:
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        return error
    try:
        return read_page(fd, page)
    finally:
        close_quietly(fd)


def _write_file(new: NewFiles, name: str, page: memoryview) -> Result:
    try:
        new.write(name, page)
    except OSError as error:
        return error
    return ObjectStatus.OK


def read_page(fd: int, page: memoryview) -> Result:
    """Fill a page from an open file, which must have the page's length."""
    size_bytes = len(page)
    try:
        # One call finds both the page and whether the file goes on.
        done = os.preadv(fd, (page, _BEYOND), 0)
        while done < size_bytes:
            num_bytes = os.preadv(fd, (page[done:], _BEYOND), done)
            if num_bytes == 0:
                return ObjectStatus.TOO_SHORT
            done += num_bytes
    except OSError as error:
        return error
    return ObjectStatus.OK if done == size_bytes else ObjectStatus.WRONG_LENGTH
