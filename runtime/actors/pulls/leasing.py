"""Pieces that are leased: their pages are read out of the other node's arena, not sent by it.

A stream carries the heads of pieces as always, but behind each head, instead of the pages, where
every page that is held lies in the arena it is in. The pages stay pinned until the reader has said
that it has read them, or until the stream has ended:

    holder                                   reader
    pinned, headers filled    --- lease -->  claimed
    leased                                   reading, one-sided, into staged pages
    finished: unpinned        <-- read ----  read, and only now compared with names and checksums
                                             settled: OK, or dropped

A page that changed while it was read, since its lease ended with the stream, is found by its
checksum or its name.
"""

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raydix.errors import RaydixError
from raydix.runtime.actors.pulls.arriving import ArrivingPage, ArrivingPages
from raydix.runtime.actors.pulls.leaving import LeavingPages, LeavingPiece
from raydix.runtime.actors.pulls.page_stream import PageStream, StreamEnded
from raydix.runtime.actors.pulls.pieces import HEAD_BYTES, PeerMisbehaves, Piece
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker.object_header import fill_headers, verify_objects

logger = logging.getLogger(__name__)

_OFFSET_BYTES = 8
_READ = struct.Struct("<QI")
"""What the reader says of a piece that it has read: batch, first page."""


class ReadFailed(RaydixError):
    """Pages could not be read out of the other node's arena, and may be written to by what has
    failed until their carrier is closed.
    """


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """One page to be read."""

    offset: int
    """Where it lies in the other node's arena, in bytes."""
    local_offset: int
    num_bytes: int


class RemoteReads(Protocol):
    """Reads out of another node's arena into the own one."""

    def read(self, reads: Sequence[RemoteRead]) -> None:
        """Read pages; nothing is written to them after that. Raises ReadFailed."""


def lease_pages(stream: PageStream, leaving: LeavingPages, namespace: Namespace) -> None:
    """Lease pieces until no more come, or the stream has ended."""
    try:
        while (piece := leaving.take()) is not None:
            fill_headers(piece.refs, namespace)
            stream.send([_pack(piece)])
            _wait_until_read(stream, piece.piece)
            leaving.finish(piece)
    except StreamEnded as ended:
        logger.info("a stream of leases to another node has ended: %s", ended)
    except PeerMisbehaves as error:
        logger.warning("a stream of leases to another node is closed: %s", error)
    finally:
        stream.close()
        stream.release()


def _pack(leaving: LeavingPiece) -> bytes:
    offsets = (ref.offset for ref in leaving.refs)
    return leaving.piece.pack() + struct.pack(f"<{len(leaving.refs)}Q", *offsets)


def _wait_until_read(stream: PageStream, piece: Piece) -> None:
    """Return once the reader needs the pages of a piece no more."""
    said = memoryview(bytearray(_READ.size))
    if not _receive_whole(stream, said):
        raise StreamEnded("the reader has gone within a lease")
    if (found := _READ.unpack(said)) != (piece.batch_id, piece.first):
        raise PeerMisbehaves(
            f"a reader has read {found}, but batch {piece.batch_id} is leased from {piece.first} on"
        )


def read_pages(
    stream: PageStream, arriving: ArrivingPages, namespace: Namespace, reads: RemoteReads
) -> None:
    """Read leased pages into the arena until the stream ends, or a read fails."""
    head = memoryview(bytearray(HEAD_BYTES))
    try:
        while _receive_whole(stream, head):
            piece = Piece.unpack(head)
            pages = arriving.claim(piece)
            if pages:
                reads.read(_reads_of(pages, _receive_offsets(stream, len(pages))))
                arriving.note_bytes(len(pages) * piece.object_bytes)
            stream.send([_READ.pack(piece.batch_id, piece.first)])
            _settle(pages, arriving, namespace)
    except StreamEnded as ended:
        logger.info("a stream of leases from another node has ended: %s", ended)
    except ReadFailed as failed:
        logger.info("a stream of leases from another node is closed: %s", failed)
    except PeerMisbehaves as error:
        logger.warning("a stream of leases from another node is closed: %s", error)
    finally:
        stream.close()
        stream.release()


def _receive_offsets(stream: PageStream, num_pages: int) -> tuple[int, ...]:
    data = memoryview(bytearray(num_pages * _OFFSET_BYTES))
    if not _receive_whole(stream, data):
        raise StreamEnded("it ended within a lease")
    return struct.unpack(f"<{num_pages}Q", data)


def _reads_of(pages: Sequence[ArrivingPage], offsets: Sequence[int]) -> list[RemoteRead]:
    return [
        RemoteRead(offset, page.ref.offset, len(page.ref.page))
        for page, offset in zip(pages, offsets, strict=True)
    ]


def _settle(pages: Sequence[ArrivingPage], arriving: ArrivingPages, namespace: Namespace) -> None:
    """Compare pages with their names and checksums: only then they are handed on."""
    refs = [page.ref for page in pages]
    statuses = verify_objects(refs, [ObjectStatus.OK] * len(refs), namespace)
    for page, status in zip(pages, statuses, strict=True):
        arriving.settle(page, status)


def _receive_whole(stream: PageStream, buffer: memoryview) -> bool:
    """Fill a buffer; False: the stream has ended before. Raises StreamEnded within it."""
    rest = buffer
    while rest:
        num_bytes = stream.receive_into(rest)
        if not num_bytes:
            if len(rest) < len(buffer):
                raise StreamEnded("it ended in the middle")
            return False
        rest = rest[num_bytes:]
    return True
