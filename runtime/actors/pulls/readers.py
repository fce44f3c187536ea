"""Being pulled from: the port at which other nodes ask for pages, and what each of them is sent."""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from raydix.ids import BatchId, ConnectionId
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.links.socket_link import SocketLink
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.pulls.judging import ReaderJudge
from raydix.runtime.actors.pulls.leasing import lease_pages
from raydix.runtime.actors.pulls.leaving import LeavingPages
from raydix.runtime.actors.pulls.nixl_process import NixlProcess, NixlUnusable
from raydix.runtime.actors.pulls.page_stream import PageStream, StreamListener
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.actors.pulls.pull_settings import PullHome
from raydix.runtime.actors.pulls.stalls import wait_for_stall
from raydix.runtime.actors.pulls.streaming import send_pages
from raydix.runtime.cache.host.events import (
    FromReader,
    PagesSent,
    ReaderAttached,
    ReaderLost,
    SendPages,
)
from raydix.runtime.config.pull import PullTransport
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.pulls import ArenaAccess, OpenStreams, PullPages

logger = logging.getLogger(__name__)

_TICKET_BYTES = 16
_MAX_STREAMS = 64
"""The most streams of one link."""


class _Reader:
    """Owns: one reader's link and streams, and what it is sent."""

    def __init__(self, link: SocketLink, leaving: LeavingPages) -> None:
        self.link = link
        self.leaving = leaving
        self._streams: list[tuple[PageStream, threading.Thread]] = []
        self._is_ended = False
        self._lock = threading.Lock()

    def admit(self, stream: PageStream) -> bool:
        """Take a stream, which this thread uses from now on, unless there are too many."""
        with self._lock:
            if self._is_ended or len(self._streams) >= _MAX_STREAMS:
                return False
            self._streams.append((stream, threading.current_thread()))
        return True

    def end(self) -> None:
        """Close all streams, and wait until nobody sends any more. Not for the loop."""
        self.leaving.end()
        with self._lock:
            self._is_ended = True
        for stream, _ in self._streams:
            stream.close()
        for _, thread in self._streams:
            thread.join()
        self.leaving.close()


def _start_nixl(home: PullHome) -> NixlProcess | None:
    """Let other nodes read the arena by NIXL; None, with the reason in the log: they cannot."""
    reason = home.why_not_nixl
    if reason is None:
        try:
            return NixlProcess(home.arena.location, home.users)
        except NixlUnusable as error:
            reason = str(error)
    level = logging.WARNING if home.transport is PullTransport.NIXL else logging.INFO
    logger.log(level, "pages travel by TCP, not by NIXL: %s", reason)
    return None


class ReaderLinks:
    """Owns: the port at which other nodes pull pages, and their links."""

    def __init__(self, home: PullHome, secret: bytes) -> None:
        self._home = home
        self._secret = secret
        self._readers: dict[ConnectionId, _Reader] = {}
        self._by_ticket: dict[bytes, _Reader] = {}
        self._listener: Listener | None = None
        self._streams: StreamListener | None = None
        self._nixl: NixlProcess | None = None
        """The process in which NIXL lets others read the arena."""
        self._loop = asyncio.get_running_loop()

    async def open(self, address: TcpAddress) -> int:
        """Listen; returns the port. Streams come to the next one, or, for port 0, to any.

        Raises AddressTaken, or OSError if the address cannot be bound.
        """
        home = self._home
        self._nixl = await asyncio.to_thread(_start_nixl, home)
        next_port = address.port and address.port + 1
        self._streams = StreamListener(
            TcpAddress(address.host, next_port),
            home.hello,
            self._secret,
            self._serve_stream,
            tls=home.listener_tls,
            patience_s=home.patience_s,
        )
        try:
            self._listener = await listen(
                str(address), home.hello, self._secret, self._serve, tls=home.listener_tls
            )
        except BaseException:
            self._streams.close()
            raise
        return self._listener.port

    def send(self, effect: SendPages) -> None:
        """Let a reader's streams send pages; if it has gone, they are sent already."""
        if (reader := self._readers.get(effect.connection)) is not None:
            reader.leaving.send(effect)
        else:
            self._home.post(PagesSent(effect.connection, effect.batch_id))

    async def close(self) -> None:
        """Listen no more, and end all links."""
        if self._listener is not None:
            await self._listener.close()
        if self._streams is not None:
            await asyncio.to_thread(self._streams.close)
        if self._nixl is not None:
            await asyncio.to_thread(self._nixl.close)

    async def _serve(self, link: SocketLink) -> None:
        if link.hello.role is not Role.HOST_MEMORY:
            logger.warning("%s does not pull pages", link.hello)
            link.close()
            return

        connection = self._home.links.open(link)
        leaving = LeavingPages(self._home.arena, partial(self._note_sent, connection))
        reader = self._readers[connection] = _Reader(link, leaving)
        ticket = secrets.token_bytes(_TICKET_BYTES)
        self._by_ticket[ticket] = reader
        self._home.post(ReaderAttached(connection))
        logger.info("%s pulls pages from here", link.hello.name)
        watch = asyncio.create_task(self._watch(reader))
        try:
            await self._hear(connection, reader, ticket)
        except (LinkClosed, PeerMisbehaves) as error:
            logger.info("%s pulls no more pages: %s", link.hello.name, error)
        finally:
            watch.cancel()
            self._home.links.close(connection)
            del self._by_ticket[ticket]
            self._home.post(ReaderLost(connection))
            await asyncio.shield(asyncio.to_thread(reader.end))
            del self._readers[connection]

    async def _hear(self, connection: ConnectionId, reader: _Reader, ticket: bytes) -> None:
        """Pass on what a reader says. Raises LinkClosed, or PeerMisbehaves."""
        assert self._streams is not None, "who listens for links listens for streams"
        reader.link.send(OpenStreams(port=self._streams.port, ticket=ticket, access=self._access()))
        judge = ReaderJudge(self._home.arena.geometry.num_groups)
        while True:
            message = judge.check(await reader.link.receive(), reader.leaving.num_open)
            if isinstance(message, PullPages):
                reader.leaving.ask(message)
            self._home.post(FromReader(connection, message))

    def _access(self) -> ArenaAccess | None:
        """How others read the arena now."""
        if self._nixl is not None and not self._nixl.is_alive:
            logger.warning("others are sent pages by TCP from now on: the process of NIXL ended")
            self._nixl = None
        return None if self._nixl is None else self._nixl.access

    async def _watch(self, reader: _Reader) -> None:
        """End the link of a reader that asks for pages and takes none, which are pinned for it."""
        await wait_for_stall(reader.leaving.progress, self._home.patience_s)
        logger.warning("%s asks for pages and takes none", reader.link.hello.name)
        reader.link.abort("the reader takes no pages")

    def _serve_stream(self, hello: Hello, stream: PageStream) -> None:
        """Send pages by a stream until it ends; called in a thread of its own."""
        reader = None if hello.ticket is None else self._by_ticket.get(hello.ticket)
        is_stream = hello.role in (Role.PAGE_STREAM, Role.LEASE_STREAM)
        if reader is None or not is_stream or not reader.admit(stream):
            logger.warning("a stream of pages of %s belongs to no link", hello)
            stream.close()
            stream.release()
            return
        try:
            serve = send_pages if hello.role is Role.PAGE_STREAM else lease_pages
            serve(stream, reader.leaving, self._home.namespace)
        finally:
            # Its pages come by no other stream.
            self._call(reader.link.close)

    def _note_sent(self, connection: ConnectionId, batch_id: BatchId) -> None:
        self._call(self._home.post, PagesSent(connection, batch_id))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call a function; a loop that has ended needs to know nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
