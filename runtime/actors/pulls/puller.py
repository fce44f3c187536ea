"""Pulling pages from one other node: the link to its HostMemory, and the streams beside it."""

import asyncio
import contextlib
import logging
import threading
from dataclasses import replace
from typing import assert_never

from raydix.ids import ConnectionId
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S, SocketLink
from raydix.runtime.actors.pulls.arriving import ArrivingPages
from raydix.runtime.actors.pulls.judging import PeerJudge
from raydix.runtime.actors.pulls.page_stream import PageStream, dial_stream
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome
from raydix.runtime.actors.pulls.streaming import receive_pages
from raydix.runtime.cache.host.events import FromPeer, PeerAttached, PeerLost, StorageOrder
from raydix.runtime.messages.hello import Role
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    ObjectsDone,
    ReadObjects,
    WriteObjects,
)
from raydix.runtime.messages.pulls import OpenStreams, PullPages, TellKeys

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 5.0
_LOOKS = 10
"""The times that progress is looked at within the patience: a look that comes late, as this process
was held up, counts for no more than one.
"""


class Puller:
    """Owns: the link to one other node, which is dialled again whenever it is lost."""

    def __init__(self, record: PeerRecord, home: PullHome) -> None:
        self._record = record
        self._home = home
        self._session: _Session | None = None

    @property
    def record(self) -> PeerRecord:
        """The node that it pulls from."""
        return self._record

    @property
    def session(self) -> "_Session | None":
        """What orders go to; None while there is no link."""
        return self._session

    async def run(self) -> None:
        """Pull until cancelled."""
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                await self._pull()
                delay_s = _FIRST_RETRY_S
            except LinkRefused as refusal:
                logger.warning("%s lets nobody pull: %s", self._record.name, refusal)
            except (LinkClosed, PeerMisbehaves, TimeoutError, OSError) as error:
                logger.info("no pages can be pulled from %s: %s", self._record.name, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_RETRY_S)

    async def _pull(self) -> None:
        """Open a link with its streams, and pull until it ends."""
        record, home = self._record, self._home
        address = TcpAddress(record.host, record.port)
        link = await connect(
            str(address), home.hello, record.secret, timeout_s=0.0, tls=home.dialer_tls
        )
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                opening = await link.receive()
            if not isinstance(opening, OpenStreams):
                raise PeerMisbehaves(f"a {type(opening).__name__} comes before its streams")
            streams = await asyncio.to_thread(self._open_streams, opening)
        except BaseException:
            link.close()
            raise

        self._session = _Session(link, streams, home)
        try:
            await self._session.run(record.name)
        finally:
            self._session = None

    def _open_streams(self, opening: OpenStreams) -> list[PageStream]:
        """All streams of a link. Raises LinkRefused."""
        home, address = self._home, TcpAddress(self._record.host, opening.port)
        hello = replace(home.hello, role=Role.PAGE_STREAM, ticket=opening.ticket)
        streams: list[PageStream] = []
        try:
            for _ in range(home.num_streams):
                streams.append(dial_stream(address, hello, self._record.secret, home.dialer_tls))
        except BaseException:
            for stream in streams:
                stream.close()
                stream.release()
            raise
        return streams


class _Session:
    """Owns: one link with its streams, from the first page to the end of all threads."""

    def __init__(self, link: SocketLink, streams: list[PageStream], home: PullHome) -> None:
        self.connection: ConnectionId = home.next_connection()
        self._link = link
        self._streams = streams
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._arriving = ArrivingPages(home.arena, self._answer)
        self._judge = PeerJudge(home.arena.geometry.num_groups)
        self._threads = [
            threading.Thread(target=self._receive, args=[stream], name="pull", daemon=True)
            for stream in streams
        ]

    async def run(self, name: str) -> None:
        """Serve the link until it ends, or one of its streams, or until it stalls."""
        post = self._home.post
        post(PeerAttached(self.connection, name))
        logger.info("pages can be pulled from %s", name)
        for thread in self._threads:
            thread.start()
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                message = self._judge.check(await self._link.receive())
                post(FromPeer(self.connection, message))
        except (LinkClosed, PeerMisbehaves) as error:
            logger.info("the link to %s is lost (%s) and dialled again", name, error)
        finally:
            watch.cancel()
            self._link.close()
            for stream in self._streams:
                stream.close()
            # Only then nobody writes the pages any more that were to come.
            await asyncio.shield(asyncio.to_thread(self._join))
            post(PeerLost(self.connection))

    def order(self, order: StorageOrder) -> None:
        """Carry out what the core orders."""
        match order:
            case ReadObjects():
                self._arriving.ask(order)
                self._send(PullPages(batch_id=order.batch_id, keys=order.keys, group=order.group))
            case AskExists():
                self._judge.ask(order)
                self._send(order)
            case CancelBatch():
                self._send(order)
            case WriteObjects() | DeleteObjects():
                raise AssertionError(f"{order} is nothing to ask of another node")
            case _:
                assert_never(order)

    def ask_for_keys(self) -> None:
        """Have the peer tell all its keys once more."""
        self._send(TellKeys())

    def _send(self, message: AskExists | CancelBatch | PullPages | TellKeys) -> None:
        # A link that is lost is noticed by who receives.
        with contextlib.suppress(LinkClosed):
            self._link.send(message)

    def _receive(self, stream: PageStream) -> None:
        try:
            receive_pages(stream, self._arriving, self._home.namespace)
        finally:
            # Pages that it should have brought come by no other.
            self._call(self._link.close)

    def _answer(self, done: ObjectsDone) -> None:
        self._call(self._home.post, FromPeer(self.connection, done))

    def _call(self, function: object, *arguments: object) -> None:
        """Have the loop call a function; a loop that has ended needs to know nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    async def _watch(self) -> None:
        """End the link of a peer that is to send pages and sends nothing."""
        num_bytes, num_still = 0, 0
        while num_still < _LOOKS:
            await asyncio.sleep(self._home.patience_s / _LOOKS)
            is_still = self._arriving.num_open > 0 and self._arriving.num_bytes == num_bytes
            num_bytes = self._arriving.num_bytes
            num_still = num_still + 1 if is_still else 0
        logger.warning("a peer owes pages and sends nothing: its link is closed")
        self._link.close()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()
