"""What a thread does with a stream of pages: it sends what leaves, or receives what arrives."""

import logging

from raydix.runtime.actors.pulls.arriving import ArrivingPages, PageInflow
from raydix.runtime.actors.pulls.leaving import LeavingPages
from raydix.runtime.actors.pulls.page_stream import PageStream, StreamEnded
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker.object_header import verify_objects

logger = logging.getLogger(__name__)


def send_pages(stream: PageStream, leaving: LeavingPages, namespace: Namespace) -> None:
    """Send pieces until no more come, or the stream has ended."""
    try:
        while (piece := leaving.take()) is not None:
            stream.send(piece.buffers(namespace))
            leaving.finish(piece)
    except StreamEnded as ended:
        logger.info("a stream of pages to another node has ended: %s", ended)
    finally:
        stream.close()
        stream.release()


def receive_pages(stream: PageStream, arriving: ArrivingPages, namespace: Namespace) -> None:
    """Take pages into the arena until the stream ends, or brings what it may not.

    A page is settled once its bytes were compared with its name and checksum; while they are in the
    processor's cache that takes little time.
    """
    inflow = PageInflow(arriving)
    try:
        while num_bytes := stream.receive_into(inflow.rest):
            if (page := inflow.take(num_bytes)) is not None:
                [status] = verify_objects([page.ref], [ObjectStatus.OK], namespace)
                arriving.settle(page, status)
        if not inflow.is_between_pieces:
            logger.info("a stream of pages from another node has ended within a piece")
    except StreamEnded as ended:
        logger.info("a stream of pages from another node has ended: %s", ended)
    except PeerMisbehaves as error:
        logger.warning("a stream of pages from another node is closed: %s", error)
    finally:
        stream.close()
        stream.release()
