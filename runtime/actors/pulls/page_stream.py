"""Streams of pages over sockets that threads use: within a host, over TCP, or under TLS."""

import contextlib
import logging
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from raydix.runtime.actors.links.address import TcpAddress, notice_dead_peers, open_connection
from raydix.runtime.actors.links.blocking_handshake import shake_hands
from raydix.runtime.actors.links.handshake import DialerHandshake, ListenerHandshake, new_nonce
from raydix.runtime.actors.links.link import LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S
from raydix.runtime.messages.hello import Hello

logger = logging.getLogger(__name__)

_MAX_STRANGERS = 64
"""Connections that have not shown the secret; each has a thread for as long."""

_RETRY_S = 0.1
_CREDENTIALS = struct.Struct("3i")
"""What the kernel says of a peer on this host: the ids of its process, user and group."""
_HERE_BYTES = 1 << 20
"""What may be under way within a host: with less, its ends wait for each other more often."""


class StreamEnded(Exception):
    """The stream was closed, or its peer is gone or takes nothing."""


class PageStream(Protocol):
    """One end of a stream of pages, which go one way. `close` alone is thread-safe."""

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Send buffers one after another; none is read after that. Raises StreamEnded."""

    def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes, perhaps until the buffer is full; 0: the stream has ended.

        Returns how many came. Raises StreamEnded.
        """

    def close(self) -> None:
        """End the stream, and wake whoever uses it. May be called twice."""

    def release(self) -> None:
        """Give back what the stream takes: for the thread that uses it, which uses it no more."""


class SocketStream:
    """A `PageStream` over a connected socket, whose peer is known."""

    def __init__(self, connection: socket.socket, patience_s: float | None = None) -> None:
        """`patience_s`: how long a peer may take over one page that is sent; None: for ever."""
        self._connection = connection
        # Whole pages at once, with one system call each; TLS decrypts a record at a time.
        self._flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
        connection.settimeout(patience_s)

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Send buffers, waiting while the peer is slow, but for so long alone."""
        try:
            for buffer in buffers:
                self._connection.sendall(buffer)
        except OSError as error:
            raise StreamEnded(f"the stream broke: {error}") from error

    def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes on the socket."""
        try:
            return self._connection.recv_into(buffer, len(buffer), self._flags)
        except OSError as error:
            raise StreamEnded(f"the stream broke: {error}") from error

    def close(self) -> None:
        """Shut the socket down, which wakes whoever uses it."""
        # Not by the method of TLS sockets, after which who reads gets bytes as they are. Nor is it
        # closed: another thread may be about to use the descriptor's number.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the descriptor."""
        self._connection.close()


def dial_stream(
    address: TcpAddress, own: Hello, secret: bytes, tls: ssl.SSLContext | None
) -> SocketStream:
    """Open a stream, to receive pages.

    Raises LinkRefused if nobody there believes us, LinkSilent if nobody there answers in time.

    A listener of this host is reached without TCP, which takes a third of the CPU, but for TLS.
    """
    if tls is None and (connection := _connect_here(address)) is not None:
        with contextlib.suppress(LinkRefused, LinkSilent):
            return _shaken(connection, own, secret)
    try:
        connection = open_connection(address, HANDSHAKE_S)
        connection = _under_tls(connection, tls, address.host)
    except OSError as error:
        raise LinkRefused(f"no stream of pages from {address}: {error}") from error
    return _shaken(connection, own, secret)


def _shaken(connection: socket.socket, own: Hello, secret: bytes) -> SocketStream:
    """The stream of a connection, once its peer believes us. Raises LinkRefused or LinkSilent."""
    shake_hands(connection, DialerHandshake(own, secret, new_nonce()))
    return SocketStream(connection)


def _name_here(host: str, port: int) -> bytes:
    """What a listener at this port is called by the kernel, in the network that has this port."""
    return f"\0raydix-pages-{host}-{port}".encode()


def _connect_here(address: TcpAddress) -> socket.socket | None:
    """Connect to a listener of this host and user; None: it is elsewhere."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(HANDSHAKE_S)
        connection.connect(_name_here(address.host, address.port))
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(told)
        # Another user may have taken the name, to listen to what passes.
        if user == os.geteuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _listen_here(host: str, port: int) -> socket.socket | None:
    """Listen for dialers of this host; None, with the reason in the log: they come by TCP."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_name_here(host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        logger.warning("pages leave for nodes of this host by TCP: %s", error)
        return None
    return listener


def _under_tls(
    connection: socket.socket, tls: ssl.SSLContext | None, host: str | None = None
) -> socket.socket:
    """The connection, under TLS if that is used. `host`: whom a dialer wants. Raises OSError."""
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_side=host is None, server_hostname=host)
    except OSError:
        connection.close()
        raise


class StreamListener:
    """Owns: listening sockets for streams of pages, and those who have not shown the secret."""

    def __init__(
        self,
        address: TcpAddress,
        own: Hello,
        secret: bytes,
        on_stream: Callable[[Hello, SocketStream], None],
        *,
        tls: ssl.SSLContext | None,
        patience_s: float,
    ) -> None:
        """Listen; port 0 chooses one. Raises OSError.

        `on_stream` is called for each stream whose peer knows the secret, in a thread of that
        stream, which ends when it returns. `patience_s`: how long a peer may take over one page.
        """
        self._own = own
        self._secret = secret
        self._on_stream = on_stream
        self._tls = tls
        self._patience_s = patience_s
        self._strangers = threading.BoundedSemaphore(_MAX_STRANGERS)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.create_server((address.host, address.port), family=family)
        here = None if tls else _listen_here(address.host, self.port)
        self._sockets = [self._socket] if here is None else [self._socket, here]
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._accept, args=[each], name="page-streams", daemon=True)
            for each in self._sockets
        ]
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int:
        """The port that is listened at."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Take no more streams; those that there are go on."""
        self._closing.set()
        for listener in self._sockets:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for listener in self._sockets:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # Closed, or too many files are open: the next attempt shows.
                self._closing.wait(_RETRY_S)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._meet, args=[connection], name="page-stream", daemon=True
            ).start()

    def _meet(self, connection: socket.socket) -> None:
        try:
            try:
                connection.settimeout(HANDSHAKE_S)
                if connection.family == socket.AF_UNIX:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _HERE_BYTES)
                else:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    notice_dead_peers(connection)
                connection = _under_tls(connection, self._tls)
                handshake = ListenerHandshake(self._own, self._secret, new_nonce())
                hello = shake_hands(connection, handshake)
            finally:
                self._strangers.release()
        except (OSError, LinkRefused, LinkSilent) as error:
            logger.warning("dropping a stream of pages: %s", error)
            return
        self._on_stream(hello, SocketStream(connection, self._patience_s))
