"""The asyncio end of a link over a unix or TCP socket."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import cast

from raydix.runtime.actors.links.address import notice_dead_peers
from raydix.runtime.actors.links.frames import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    FrameReader,
    FrameTooLarge,
    frame,
)
from raydix.runtime.actors.links.handshake import Handshake, HandshakeFailed
from raydix.runtime.actors.links.inbox import Inbox
from raydix.runtime.actors.links.link import (
    CLIENT_MAX_FRAME_BYTES,
    INBOX_BYTES,
    LinkClosed,
    max_buffered_bytes,
)
from raydix.runtime.messages.codec import Message, MessageError, decode, encode
from raydix.runtime.messages.hello import Hello, Role

logger = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
UNDRAINED_BYTES = 256 << 10
"""Sent and not yet taken by the network, past which a link is not `drained`."""
_CLOSE_FLUSH_S = 5.0


class SocketLink(asyncio.Protocol):
    """A `Link` over a socket; open once the peer has shown the secret."""

    def __init__(
        self,
        handshake: Handshake,
        on_open: Callable[["SocketLink"], None],
        max_client_frame_bytes: int = CLIENT_MAX_FRAME_BYTES,
    ) -> None:
        """`on_open` is called once the peer is trusted; otherwise the connection is dropped."""
        self._handshake = handshake
        self._max_client_frame_bytes = max_client_frame_bytes
        self._on_open = on_open

        self._reader = FrameReader(MAX_HELLO_BYTES)
        self._inbox = Inbox(self._resume_reading)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._max_buffered_bytes = 0
        self._is_closed = False
        self._is_silent = False
        self._may_go_on = asyncio.Event()
        self._may_go_on.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is gone."""

    @property
    def hello(self) -> Hello:
        """The peer, as it introduced itself in the handshake."""
        peer = self._handshake.peer
        assert peer is not None, "the link is not open yet"
        return peer

    @property
    def buffered_bytes(self) -> int:
        """The bytes that were sent and that the transport has not taken over yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        """Whether `send` would raise."""
        return self._is_closed

    @property
    def end_reason(self) -> str | None:
        """Why the connection ended; None while it goes on."""
        return self._inbox.end_reason

    @property
    def is_silent(self) -> bool:
        """Whether the link ended as the peer did not answer the handshake in time."""
        return self._is_silent

    def send(self, message: Message) -> None:
        """Queue a message. A peer that reads too slowly loses the link."""
        if self._is_closed or self._transport is None:
            raise LinkClosed("the link is closed")
        if self.buffered_bytes > self._max_buffered_bytes:
            logger.warning(
                "%s does not read: %d bytes wait for it", self.hello, self.buffered_bytes
            )
            self.abort("the peer did not read")
            raise LinkClosed("the peer did not read")
        try:
            data = frame(encode(message))
        except FrameTooLarge as error:
            # The peer would miss a message for good; with the next link it starts anew.
            logger.error("closing the link to %s: %s", self.hello, error)
            self.abort(str(error))
            raise LinkClosed(str(error)) from error
        self._transport.write(data)

    async def receive(self) -> Message:
        """Wait for the next message. One that cannot be decoded ends the link."""
        body = await self._inbox.take()
        try:
            return decode(body)
        except MessageError as error:
            logger.warning("closing the link to %s: %s", self.hello, error)
            self.abort(f"{self.hello}: {error}")
            raise LinkClosed(f"{self.hello}: {error}") from error

    async def drained(self) -> None:
        """Return once the peer reads, or the link is closed; at once unless much waits for it."""
        await self._may_go_on.wait()

    def close(self) -> None:
        """End the link once what is buffered has gone out, or a while later."""
        if self._is_closed:
            return
        self._end()
        self._inbox.drop("the link was closed")
        if self._transport is not None:
            self._transport.close()
            self._set_deadline(_CLOSE_FLUSH_S, self._transport.abort)

    def cut(self) -> None:
        """End the link at once, without its event loop."""
        self._is_closed = True
        if self._transport is None:
            return
        own = self._transport.get_extra_info("socket")
        # The transport itself acts by its loop alone. Its socket may be gone.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(own.fileno())) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def abort(self, reason: str) -> None:
        """End the link at once, whatever is under way in either direction."""
        self._end()
        self._inbox.drop(reason)
        if self._transport is not None:
            self._transport.abort()
        elif not self.lost.done():
            # TLS may still be negotiating, or have failed: then nobody tells of the end.
            self.lost.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, which has a bounded time."""
        # Not checked by type: uvloop's transports, which Ray uses where it finds uvloop, derive
        # from nothing.
        self._transport = cast(asyncio.Transport, transport)
        self._set_deadline(HANDSHAKE_S, self._give_up)
        if self._is_closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(UNDRAINED_BYTES)
        notice_dead_peers(self._transport.get_extra_info("socket"))
        self._say(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        """Cut frames; make the sender wait if our reader is behind."""
        self._reader.feed(data)
        try:
            while not self._is_closed and (body := self._reader.take()) is not None:
                if self._handshake.peer is None:
                    self._shake(body)
                else:
                    self._inbox.put(body)
        except FrameTooLarge as error:
            logger.warning("dropping a connection: %s", error)
            self.abort(str(error))
        if self._inbox.num_bytes > INBOX_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        if not self._is_closed:
            self._may_go_on.clear()

    def resume_writing(self) -> None:
        """Little is left of what it was sent."""
        self._may_go_on.set()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer ended, died, or we closed."""
        self._end()
        self._clear_deadline()
        self._inbox.end("the peer closed the link" if error is None else f"the link broke: {error}")
        if not self.lost.done():
            self.lost.set_result(None)

    def _end(self) -> None:
        self._is_closed = True
        self._may_go_on.set()

    def _shake(self, body: bytes) -> None:
        """Go on with the handshake; at its end the link is open."""
        try:
            answer = self._handshake.take(body)
        except HandshakeFailed as error:
            logger.warning("dropping a connection: %s", error)
            self.abort(str(error))
            return
        self._say(answer)
        if self._handshake.peer is not None:
            self._open(self._handshake.peer)

    def _say(self, body: bytes | None) -> None:
        if body is not None:
            assert self._transport is not None
            self._transport.write(frame(body))

    def _open(self, hello: Hello) -> None:
        is_client = hello.role is Role.CLIENT
        self._reader.accept(self._max_client_frame_bytes if is_client else MAX_FRAME_BYTES)
        self._max_buffered_bytes = max_buffered_bytes(hello.role)
        self._clear_deadline()
        self._on_open(self)

    def _resume_reading(self, _: int) -> None:
        if (
            self._inbox.num_bytes <= INBOX_BYTES
            and self._transport is not None
            and not self._is_closed
        ):
            self._transport.resume_reading()

    def _give_up(self) -> None:
        self._is_silent = True
        self.abort("the peer did not answer the handshake in time")

    def _set_deadline(self, seconds: float, at_end: Callable[[], None]) -> None:
        self._clear_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, at_end)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
