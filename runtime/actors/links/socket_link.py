"""The asyncio end of a link over a unix or TCP socket, and how such links come to be."""

import asyncio
import errno
import hmac
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

from raydix.runtime.actors.links.address import TcpAddress, UnixAddress, parse_address
from raydix.runtime.actors.links.frames import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    FrameReader,
    FrameTooLarge,
    frame,
)
from raydix.runtime.actors.links.inbox import Inbox
from raydix.runtime.actors.links.link import (
    CLIENT_MAX_FRAME_BYTES,
    INBOX_BYTES,
    AddressTaken,
    Link,
    LinkClosed,
    LinkRefused,
    max_buffered_bytes,
)
from raydix.runtime.actors.links.socket_file import SocketFile
from raydix.runtime.messages.codec import Message, MessageError, decode, encode
from raydix.runtime.messages.hello import Hello, Role

logger = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
_CLOSE_FLUSH_S = 5.0
_MAX_STRANGERS = 256
"""Connections of a listener that have not shown the secret."""
_FIRST_RETRY_S = 0.01
_MAX_RETRY_S = 0.5


def trusted_hello(body: bytes, secret: bytes) -> Hello | None:
    """The hello of a peer that knows `secret`, else None."""
    try:
        message = decode(body)
    except MessageError:
        return None
    if not isinstance(message, Hello) or not isinstance(message.secret, bytes):
        return None
    return message if hmac.compare_digest(message.secret, secret) else None


def retry_delays_s(timeout_s: float) -> list[float]:
    """Waits between attempts to connect: doubling, and `timeout_s` in sum."""
    delays, delay_s = [], _FIRST_RETRY_S
    while timeout_s > 0:
        delays.append(min(delay_s, timeout_s))
        timeout_s -= delay_s
        delay_s = min(2 * delay_s, _MAX_RETRY_S)
    return delays


class SocketLink(asyncio.Protocol):
    """A `Link` over a socket; open once the peer's hello has shown the secret."""

    def __init__(
        self,
        own: Hello,
        on_open: Callable[["SocketLink"], None],
        max_client_frame_bytes: int = CLIENT_MAX_FRAME_BYTES,
    ) -> None:
        """`on_open` is called once the peer is trusted; otherwise the connection is dropped."""
        self._own = own
        self._max_client_frame_bytes = max_client_frame_bytes
        self._on_open = on_open

        self._reader = FrameReader(MAX_HELLO_BYTES)
        self._inbox = Inbox(self._resume_reading)
        self._hello: Hello | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._max_buffered_bytes = 0
        self._is_closed = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is gone."""

    @property
    def hello(self) -> Hello:
        """See `Link`."""
        assert self._hello is not None, "the link is not open yet"
        return self._hello

    @property
    def buffered_bytes(self) -> int:
        """See `Link`."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        """See `Link`."""
        return self._is_closed

    def send(self, message: Message) -> None:
        """See `Link`."""
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
        """See `Link`."""
        body = await self._inbox.take()
        try:
            return decode(body)
        except MessageError as error:
            logger.warning("closing the link to %s: %s", self.hello, error)
            self.abort(f"{self.hello}: {error}")
            raise LinkClosed(f"{self.hello}: {error}") from error

    def close(self) -> None:
        """See `Link`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._inbox.drop("the link was closed")
        if self._transport is not None:
            self._transport.close()
            self._set_deadline(_CLOSE_FLUSH_S)

    def greet(self) -> None:
        """Send our hello."""
        assert self._transport is not None
        self._transport.write(frame(encode(self._own)))

    def abort(self, reason: str) -> None:
        """End the link at once, whatever is under way in either direction."""
        self._is_closed = True
        self._inbox.drop(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer's hello, but not for long."""
        # Not checked by type: uvloop's transports, which Ray uses where it finds uvloop, derive
        # from nothing.
        self._transport = cast(asyncio.Transport, transport)
        self._set_deadline(HANDSHAKE_S)
        if self._is_closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Cut frames; make the sender wait if our reader is behind."""
        self._reader.feed(data)
        try:
            while not self._is_closed and (body := self._reader.take()) is not None:
                if self._hello is None:
                    self._open(body)
                else:
                    self._inbox.put(body)
        except FrameTooLarge as error:
            logger.warning("dropping a connection: %s", error)
            self.abort(str(error))
        if self._inbox.num_bytes > INBOX_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer ended, died, or we closed."""
        self._is_closed = True
        self._clear_deadline()
        self._inbox.end("the peer closed the link" if error is None else f"the link broke: {error}")
        if not self.lost.done():
            self.lost.set_result(None)

    def _open(self, body: bytes) -> None:
        hello = trusted_hello(body, self._own.secret)
        if hello is None:
            logger.warning("dropping a connection: its first frame does not show the secret")
            self.abort("the peer does not know the secret")
            return
        self._hello = hello
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

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        assert self._transport is not None
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener:
    """Owns: a listening socket, the links it accepted and the tasks that serve them."""

    def __init__(
        self, own: Hello, on_link: Callable[[Link], Awaitable[None]], max_client_frame_bytes: int
    ) -> None:
        self._own = own
        self._on_link = on_link
        self._max_client_frame_bytes = max_client_frame_bytes
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._links: set[SocketLink] = set()
        self._strangers: dict[SocketLink, None] = {}
        """Accepted and not trusted yet, oldest first."""
        self._socket_file: SocketFile | None = None
        self.address = ""
        """Where to connect, as a string that travels."""

    async def open(self, address: str) -> None:
        """Bind; a dead listener's socket file is replaced.

        Raises AddressTaken, or OSError if the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        parsed = parse_address(address)

        match parsed:
            case UnixAddress(path):
                self._socket_file = SocketFile(path)
                try:
                    self._server = await loop.create_unix_server(self._accept, path)
                    os.chmod(path, 0o600)
                except BaseException:
                    await self.close()
                    raise
            case TcpAddress(host, port):
                self._server = await _serve_tcp(self._accept, host, port)
                # Port 0 let the kernel choose.
                parsed = TcpAddress(host, self._server.sockets[0].getsockname()[1])

        self.address = str(parsed)

    async def close(self) -> None:
        """Stop listening, close every accepted link and wait for the tasks that serve them."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._socket_file is not None:
            self._socket_file.remove()
            self._socket_file = None
        for link in list(self._links):
            link.close()
        await asyncio.gather(*self._tasks)

    def _accept(self) -> SocketLink:
        # Honest peers show the secret at once. Whoever holds a connection without it makes room.
        if len(self._strangers) >= _MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort("too many connections have not shown the secret")

        link = SocketLink(self._own, self._serve, self._max_client_frame_bytes)
        self._links.add(link)
        self._strangers[link] = None
        link.lost.add_done_callback(lambda _: self._forget(link))
        return link

    def _forget(self, link: SocketLink) -> None:
        self._links.discard(link)
        self._strangers.pop(link, None)

    def _serve(self, link: SocketLink) -> None:
        self._strangers.pop(link, None)
        link.greet()
        task = asyncio.get_running_loop().create_task(self._run(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, link: SocketLink) -> None:
        try:
            await self._on_link(link)
        except Exception:
            logger.exception("serving %s failed", link.hello)
            link.close()


async def _serve_tcp(accept: Callable[[], SocketLink], host: str, port: int) -> asyncio.Server:
    try:
        return await asyncio.get_running_loop().create_server(accept, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(
                f"another listener lives at tcp:{host}:{port}; choose another port"
            ) from error
        raise


async def listen(
    address: str,
    own: Hello,
    on_link: Callable[[Link], Awaitable[None]],
    max_client_frame_bytes: int = CLIENT_MAX_FRAME_BYTES,
) -> Listener:
    """Accept links from peers that know `own.secret`; `on_link` runs once for each.

    `address` is `unix:/path` or `tcp:host:port`; port 0 chooses one, `Listener.address` tells
    which. Raises AddressTaken if another listener lives there. A client that sends a frame of more
    than `max_client_frame_bytes` is dropped.
    """
    listener = Listener(own, on_link, max_client_frame_bytes)
    await listener.open(address)
    return listener


async def connect(address: str, own: Hello, timeout_s: float = 10.0) -> Link:
    """Connect, trying again while nobody listens there.

    Raises LinkRefused if the listener hangs up on our hello, LinkClosed if nobody listened for
    `timeout_s`.
    """
    # The last attempt has no delay after it.
    for delay_s in [*retry_delays_s(timeout_s), None]:
        try:
            return await _connect_once(address, own)
        except OSError as error:
            if delay_s is None:
                raise LinkClosed(
                    f"nobody listens at {address} after {timeout_s} s: {error}"
                ) from error
            await asyncio.sleep(delay_s)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _connect_once(address: str, own: Hello) -> SocketLink:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[SocketLink] = loop.create_future()
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress):
        _, link = await loop.create_unix_connection(
            lambda: SocketLink(own, opened.set_result), parsed.path
        )
    else:
        _, link = await loop.create_connection(
            lambda: SocketLink(own, opened.set_result), parsed.host, parsed.port
        )

    # The listener answers, which opens the link, or hangs up.
    link.greet()
    events: list[asyncio.Future[Any]] = [opened, link.lost]
    try:
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        link.close()
        raise

    if not opened.done():
        raise LinkRefused(f"{address} hung up on our hello")
    return opened.result()
