"""Listening for links over a unix or TCP socket."""

import asyncio
import errno
import logging
import os
import ssl
from collections.abc import Awaitable, Callable

from raydix.runtime.actors.links.address import TcpAddress, UnixAddress, parse_address
from raydix.runtime.actors.links.handshake import ListenerHandshake, new_nonce
from raydix.runtime.actors.links.link import CLIENT_MAX_FRAME_BYTES, AddressTaken
from raydix.runtime.actors.links.socket_file import SocketFile
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S, SocketLink
from raydix.runtime.messages.hello import Hello

logger = logging.getLogger(__name__)

_MAX_STRANGERS = 256
"""Connections of a listener that have not shown the secret."""


class Listener:
    """Owns: a listening socket, the links it accepted and the tasks that serve them."""

    def __init__(
        self,
        own: Hello,
        secret: bytes,
        on_link: Callable[[SocketLink], Awaitable[None]],
        max_client_frame_bytes: int,
    ) -> None:
        self._own = own
        self._secret = secret
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

    async def open(self, address: str, tls: ssl.SSLContext | None) -> None:
        """Bind; a dead listener's socket file is replaced. `tls`: for TCP alone.

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
                self._server = await _serve_tcp(self._accept, host, port, tls)
                # Port 0 let the kernel choose.
                parsed = TcpAddress(host, self._server.sockets[0].getsockname()[1])

        self.address = str(parsed)

    @property
    def port(self) -> int:
        """The TCP port, also after it was withdrawn."""
        address = parse_address(self.address)
        assert isinstance(address, TcpAddress), "a socket file has no port"
        return address.port

    def withdraw(self) -> None:
        """Stop listening; links stay. May be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stop listening, close every accepted link and wait for the tasks that serve them."""
        self.withdraw()
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

        handshake = ListenerHandshake(self._own, self._secret, new_nonce())
        link = SocketLink(handshake, self._serve, self._max_client_frame_bytes)
        self._links.add(link)
        self._strangers[link] = None
        link.lost.add_done_callback(lambda _: self._forget(link))
        return link

    def _forget(self, link: SocketLink) -> None:
        self._links.discard(link)
        self._strangers.pop(link, None)

    def _serve(self, link: SocketLink) -> None:
        self._strangers.pop(link, None)
        task = asyncio.get_running_loop().create_task(self._run(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, link: SocketLink) -> None:
        try:
            await self._on_link(link)
        except Exception:
            logger.exception("serving %s failed", link.hello)
            link.close()


async def _serve_tcp(
    accept: Callable[[], SocketLink], host: str, port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    patience_s = None if tls is None else HANDSHAKE_S
    try:
        return await asyncio.get_running_loop().create_server(
            accept, host, port, ssl=tls, ssl_handshake_timeout=patience_s
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressTaken(
                f"another listener lives at tcp:{host}:{port}; choose another port"
            ) from error
        raise


async def listen(
    address: str,
    own: Hello,
    secret: bytes,
    on_link: Callable[[SocketLink], Awaitable[None]],
    max_client_frame_bytes: int = CLIENT_MAX_FRAME_BYTES,
    tls: ssl.SSLContext | None = None,
) -> Listener:
    """Accept links from peers that know `secret`; `on_link` runs once for each.

    `address` is `unix:/path` or `tcp:host:port`; port 0 chooses one, `Listener.address` tells
    which. Raises AddressTaken if another listener lives there. A client that sends a frame of more
    than `max_client_frame_bytes` is dropped.
    """
    listener = Listener(own, secret, on_link, max_client_frame_bytes)
    await listener.open(address, tls)
    return listener
