"""How bytes get between files and the arena: the interface, and plain system calls."""

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from raydix.runtime.messages.host import ObjectStatus


class Piece(NamedTuple):
    """A whole file, open for the transfer, and the page of the arena that it goes to or comes from."""

    fd: int
    page: memoryview
    offset: int
    """Of `page` in the arena, in bytes."""


class FileTransfers(Protocol):
    """Moves whole files. Thread-safe. Results are one per piece: OK, TOO_SHORT, WRONG_LENGTH, or that piece's error.

    No page is touched after a method has returned.
    """

    max_batch: int
    """So many pieces at a time."""

    def open(self, arena: memoryview) -> None:
        """Prepare for pages of `arena`. Raises ConfigError if that cannot work."""
        ...

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Fill each page from its file, which must have the page's length."""
        ...

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Write each page to its file, which is empty."""
        ...

    def close(self) -> None:
        """Let go of the arena."""
        ...


class SystemCalls:
    """`preadv` and `pwritev`, a file at a time."""

    max_batch = 64

    def open(self, arena: memoryview) -> None:
        """Nothing to prepare."""

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Read each file to its end."""
        return [_read(fd, page) for fd, page, _ in pieces]

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Write until each page is on file."""
        return [_write(fd, page) for fd, page, _ in pieces]

    def close(self) -> None:
        """Nothing is held."""


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
        done = os.pwritev(fd, (page,), 0)
        while done < len(page):
            done += os.pwritev(fd, (page[done:],), done)
    except OSError as error:
        return error
    return ObjectStatus.OK
