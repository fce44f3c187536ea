"""How bytes get between files and the arena: the interface, and plain system calls."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raydix.runtime.messages.host import ObjectStatus


@dataclass(frozen=True, slots=True)
class Piece:
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

    max_batch = 16

    def open(self, arena: memoryview) -> None:
        """Nothing to prepare."""

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Read each file to its end."""
        return [_read(piece) for piece in pieces]

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Write until each page is on file."""
        return [_write(piece) for piece in pieces]

    def close(self) -> None:
        """Nothing is held."""


def _read(piece: Piece) -> ObjectStatus | OSError:
    beyond = bytearray(1)  # one call finds both the page and whether the file goes on
    done = 0
    try:
        while done < len(piece.page):
            num_bytes = os.preadv(piece.fd, [piece.page[done:] if done else piece.page, beyond], done)
            if num_bytes == 0:
                return ObjectStatus.TOO_SHORT
            done += num_bytes
    except OSError as error:
        return error
    return ObjectStatus.OK if done == len(piece.page) else ObjectStatus.WRONG_LENGTH


def _write(piece: Piece) -> ObjectStatus | OSError:
    done = 0
    try:
        while done < len(piece.page):
            done += os.pwritev(piece.fd, [piece.page[done:]], done)
    except OSError as error:
        return error
    return ObjectStatus.OK
