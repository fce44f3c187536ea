"""A handshake over a socket that a thread uses."""

import socket
import time

from raydix.runtime.actors.links.frames import MAX_HELLO_BYTES, FrameReader, FrameTooLarge, frame
from raydix.runtime.actors.links.handshake import Handshake, HandshakeFailed
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S
from raydix.runtime.messages.hello import Hello


def shake_hands(connection: socket.socket, handshake: Handshake) -> Hello:
    """Carry a handshake out, within a bounded time; returns who the peer is.

    Not a byte is read of what follows, and from then on the socket waits for as long as it takes.
    Raises LinkRefused, or LinkSilent if the peer has not answered in time; then the socket is
    closed.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    try:
        if (first := handshake.begin()) is not None:
            connection.sendall(frame(first))
        while handshake.peer is None:
            answer = handshake.take(_next_body(connection, deadline_s))
            if answer is not None:
                connection.sendall(frame(answer))
        connection.settimeout(None)
    except TimeoutError as error:
        connection.close()
        raise LinkSilent(f"the peer has not answered a greeting for {HANDSHAKE_S:g} s") from error
    except (OSError, LinkClosed, FrameTooLarge, HandshakeFailed) as error:
        connection.close()
        raise LinkRefused(f"the handshake with the peer failed: {error}") from error
    return handshake.peer


def _next_body(connection: socket.socket, deadline_s: float) -> bytes:
    """The next frame's body. Raises OSError past the deadline, even if bytes trickle in."""
    reader = FrameReader(MAX_HELLO_BYTES)
    while (body := reader.take()) is None:
        # Not 0, which would mean not to wait.
        connection.settimeout(max(deadline_s - time.monotonic(), 1e-3))
        data = connection.recv(reader.num_missing)
        if not data:
            raise LinkClosed("the peer closed the link")
        reader.feed(data)
    return body
