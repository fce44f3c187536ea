"""How pages travel between two nodes: in pieces, each a head and the pages that it names. No I/O.

A stream of pages carries pieces one after another, in one direction:

    head        32 bytes, as `Piece.pack` makes it
    pages       each that the other side holds, object header and payload, in order
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from raydix.errors import RaydixError
from raydix.ids import BatchId

HEAD_BYTES = 32
MAX_PIECE_PAGES = 64
"""The most pages of a piece: there are so many bits that say which are held."""
_PIECE_BYTES = 1 << 20
"""The bytes of a piece, unless one page has more: enough that a stream is handed work a few
thousand times a second at most, and so few that the streams of a link share a batch.
"""
_MAGIC = b"RDXS"
_FORMAT = struct.Struct("<4sHHIIQQ")
"""Head: magic, group, number of pages, bytes of each page, first page, batch, which are held."""
assert _FORMAT.size == HEAD_BYTES


class PeerMisbehaves(RaydixError):
    """The other node says what it may not say: its link ends."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the pages of one batch."""

    batch_id: BatchId
    group: int
    first: int
    """The place of its first page in the batch."""
    object_bytes: int
    """The bytes of each page, object header and payload."""
    is_held: tuple[bool, ...]
    """Whether the bytes of each page of the run follow; 1 to 64 pages."""

    @property
    def places(self) -> range:
        """The places of its pages in the batch."""
        return range(self.first, self.first + len(self.is_held))

    def pack(self) -> bytes:
        """The head that is sent before the pages."""
        held = sum(1 << index for index, is_held in enumerate(self.is_held) if is_held)
        num_pages = len(self.is_held)
        return _FORMAT.pack(
            _MAGIC, self.group, num_pages, self.object_bytes, self.first, self.batch_id, held
        )

    @classmethod
    def unpack(cls, head: bytes | memoryview) -> Self:
        """Read a head. Raises PeerMisbehaves if it is none."""
        magic, group, num_pages, object_bytes, first, batch_id, held = _FORMAT.unpack(head)
        if magic != _MAGIC:
            raise PeerMisbehaves(f"a piece begins with {magic!r}; expected {_MAGIC!r}")
        if not 1 <= num_pages <= MAX_PIECE_PAGES or held >> num_pages:
            raise PeerMisbehaves(
                f"a piece has {num_pages} pages, of which {held:#x} are held; expected 1 to "
                f"{MAX_PIECE_PAGES}, and no others held"
            )
        is_held = tuple(bool(held >> index & 1) for index in range(num_pages))
        return cls(BatchId(batch_id), group, first, object_bytes, is_held)


def cut_into_pieces(
    batch_id: BatchId, group: int, object_bytes: int, is_held: Sequence[bool]
) -> Iterator[Piece]:
    """The pieces of a batch, of whose pages `is_held` says which can be sent."""
    num_pages = max(1, min(MAX_PIECE_PAGES, _PIECE_BYTES // object_bytes))
    for first in range(0, len(is_held), num_pages):
        yield Piece(batch_id, group, first, object_bytes, tuple(is_held[first : first + num_pages]))
