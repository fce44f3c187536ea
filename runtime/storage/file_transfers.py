"""How bytes get between files and the arena: the interface, and plain system calls."""

import os
from collections.abc import Sequence
from typing import Protocol

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef


class FileTransfers(Protocol):
    """Moves whole files, open in `fds`. Thread-safe.

    Results are one per file: OK, TOO_SHORT, WRONG_LENGTH, or its error. No page is touched after a
    method has returned.
    """

    max_batch: int
    """How many files a call may name."""

    def open(self, arena: memoryview) -> None:
        """Prepare for pages of `arena`. Raises ConfigError if that cannot work."""
        ...

    def read(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Fill each page from its file, which must have the page's length."""
        ...

    def write(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Write each page to its file, which is empty."""
        ...

    def close(self) -> None:
        """Let go of the arena."""
        ...


class SystemCalls:
    """`preadv` and `pwrite`, a file at a time."""

    max_batch = 64

    def open(self, arena: memoryview) -> None:
        """Do nothing: no arena has to be known beforehand."""

    def read(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Read each file to its end."""
        return [_read(fd, ref.page) for fd, ref in zip(fds, refs, strict=True)]

    def write(self, fds: Sequence[int], refs: Sequence[ObjectRef]) -> list[ObjectStatus | OSError]:
        """Write until each page is on file."""
        return [_write(fd, ref.page) for fd, ref in zip(fds, refs, strict=True)]

    def close(self) -> None:
        """Do nothing: nothing is held."""


_BEYOND = bytearray(1)


def _read(fd: int, page: memoryview) -> ObjectStatus | OSError:
    try:
        # One call finds both the page and whether the file goes on.
        done = os.preadv(fd, (page, _BEYOND), 0)
        while done < len(page):
            num_bytes = os.preadv(fd, (page[done:], _BEYOND), done)
            if num_bytes == 0:
                return ObjectStatus.TOO_SHORT
            done += num_bytes
    except OSError as error:
        return error
    return ObjectStatus.OK if done == len(page) else ObjectStatus.WRONG_LENGTH


def _write(fd: int, page: memoryview) -> ObjectStatus | OSError:
    try:
        done = os.pwrite(fd, page, 0)
        while done < len(page):
            done += os.pwrite(fd, page[done:], done)
    except OSError as error:
        return error
    return ObjectStatus.OK
