"""The end of a socket link that threads use."""

import contextlib
import logging
import select
import socket
import threading
import time

from raydix.runtime.actors.links.address import open_connection, parse_address
from raydix.runtime.actors.links.attempts import Attempts
from raydix.runtime.actors.links.blocking_handshake import shake_hands
from raydix.runtime.actors.links.frames import (
    MAX_FRAME_BYTES,
    FrameReader,
    FrameTooLarge,
    frame,
)
from raydix.runtime.actors.links.handshake import DialerHandshake, new_nonce
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.messages.codec import Message, MessageError, decode, encode
from raydix.runtime.messages.hello import Hello

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 << 10


class BlockingSocketLink:
    """A `BlockingLink` over a connected socket."""

    def __init__(self, connection: socket.socket, handshake: DialerHandshake) -> None:
        """Carry the handshake out; takes `connection` over. Raises LinkRefused or LinkSilent."""
        self._connection = connection
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._scratch = bytearray(_RECEIVE_BYTES)
        self._is_closed = False
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)

        self._hello = shake_hands(connection, handshake)

    @property
    def hello(self) -> Hello:
        """The peer, as it introduced itself."""
        return self._hello

    def send(self, message: Message) -> None:
        """Send a message, waiting while the peer does not read. One too large ends the link."""
        try:
            data = frame(encode(message))
        except FrameTooLarge as error:
            # The peer would miss a message for good; with the next link it starts anew.
            logger.error("closing the link to %s: %s", self._hello, error)
            self._shut()
            raise LinkClosed(str(error)) from error

        with self._send_lock:
            try:
                self._connection.sendall(data)
            except OSError as error:
                # Part of the frame may have gone out: nothing that follows could be understood.
                self._shut()
                raise LinkClosed(f"the link broke: {error}") from error

    def receive(self) -> Message:
        """Wait for the next message on the socket."""
        with self._receive_lock:
            if self._is_closed:
                raise LinkClosed("the link was closed")
            try:
                return decode(self._next_body())
            except (OSError, FrameTooLarge, MessageError) as error:
                if not isinstance(error, OSError):
                    logger.warning("dropping the link to %s: %s", self._hello, error)
                # Nothing that follows could be understood; the peer must not go on as if it were.
                self._shut()
                raise LinkClosed(f"the link broke: {error}") from error

    def has_message(self) -> bool:
        """Whether something has come over the socket, or it was closed."""
        return self._is_closed or self._reader.has_body or bool(self._arrivals.poll(0))

    def wait_message_or(self, descriptor: int) -> bool:
        """Wait for the socket and for another descriptor."""
        # `close` waits for the lock: a descriptor that is polled must not become another's.
        with self._receive_lock:
            if self._is_closed or self._reader.has_body:
                return True
            arrivals = select.poll()
            arrivals.register(self._connection, select.POLLIN)
            arrivals.register(descriptor, select.POLLIN)
            return any(ready != descriptor for ready, _ in arrivals.poll())

    def descriptor(self) -> int | None:
        """Where there is something to read once the next message has come, or the end.

        None: a message has come already, or the link is closed. For the thread that receives.
        """
        descriptor = self._connection.fileno()
        return None if self._reader.has_body or descriptor < 0 else descriptor

    def wait_ended(self) -> None:
        """Return once the socket has hung up."""
        descriptor = self._connection.fileno()
        if descriptor < 0:
            return
        ended = select.poll()
        # Not that there is something to read: the launcher may be far from reading it.
        ended.register(descriptor, select.POLLRDHUP)
        ended.poll()

    def close(self) -> None:
        """Shut the socket down, which wakes all that wait for it, then close its descriptor."""
        self._shut()
        # The shutdown wakes whoever holds a lock. The descriptor goes only then: another thread
        # must not meet a new socket under the old number. Who waits for it in an epoll may not be
        # woken any more: where `descriptor` is used, the thread that receives closes, or whoever
        # ends that wait by other means.
        with self._receive_lock, self._send_lock:
            self._connection.close()

    def _shut(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _next_body(self) -> bytes:
        """The next frame's body."""
        while (body := self._reader.take()) is None:
            num_bytes = self._connection.recv_into(self._scratch)
            if num_bytes == 0:
                raise LinkClosed(
                    "the link was closed" if self._is_closed else "the peer closed the link"
                )
            self._reader.feed(memoryview(self._scratch)[:num_bytes])
        return body


def connect_blocking(
    address: str,
    own: Hello,
    secret: bytes,
    timeout_s: float = 10.0,
    stop: threading.Event | None = None,
) -> BlockingSocketLink:
    """Connect, trying again while nobody listens there.

    Raises LinkRefused if either end does not believe the other, LinkSilent if nobody answers who
    listens there, LinkClosed if nobody listened, or no host answered, for `timeout_s`, or if `stop`
    is set meanwhile. The first attempt takes longer if it has to.
    """
    stop = threading.Event() if stop is None else stop
    parsed = parse_address(address)
    attempts = Attempts(timeout_s, time.monotonic())
    while True:
        try:
            connection = open_connection(parsed, attempts.bound_s(time.monotonic()))
        except OSError as error:
            pause_s = attempts.fail(time.monotonic())
            if pause_s is None or stop.wait(pause_s):
                raise attempts.end(address, error, time.monotonic()) from error
        else:
            return BlockingSocketLink(connection, DialerHandshake(own, secret, new_nonce()))
