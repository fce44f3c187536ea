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
    """Moves whole files. Thread-safe. Results are one per piece: OK, TOO_SHORT, or the error of that piece.

    No page is touched after a method has returned.
    """

    max_batch: int
    """So many pieces at a time."""

    def open(self, arena: memoryview) -> None:
        """Prepare for pages of `arena`. Raises ConfigError if that cannot work."""
        ...

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Fill each page from its file, which has at least the page's length."""
        ...

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Write each page to its file, which is empty."""
        ...

    def close(self) -> None:
        """Let go of the arena."""
        ...


class SystemCalls:
    """`preadv` and `pwritev`, a file at a time."""

    max_batch = 1

    def open(self, arena: memoryview) -> None:
        """Nothing to prepare."""

    def read(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Read until each page is full."""
        return [_attempt(piece, os.preadv) for piece in pieces]

    def write(self, pieces: Sequence[Piece]) -> list[ObjectStatus | OSError]:
        """Write until each page is on file."""
        return [_attempt(piece, os.pwritev) for piece in pieces]

    def close(self) -> None:
        """Nothing is held."""


class _Call(Protocol):
    def __call__(self, fd: int, buffers: list[memoryview], offset: int, /) -> int: ...


def _attempt(piece: Piece, call: _Call) -> ObjectStatus | OSError:
    done = 0
    try:
        while done < len(piece.page):
            num_bytes = call(piece.fd, [piece.page[done:]], done)
            if num_bytes == 0:
                return ObjectStatus.TOO_SHORT
            done += num_bytes
    except OSError as error:
        return error
    return ObjectStatus.OK
