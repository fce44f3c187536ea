"""Pulling pages from one other node: the link to its HostMemory, and the streams beside it."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_link import HANDSHAKE_S, SocketLink
from raydix.runtime.actors.pulls.arriving import ArrivingPages
from raydix.runtime.actors.pulls.carriers import Carrier, LeaseCarrier, TcpCarrier
from raydix.runtime.actors.pulls.judging import PeerJudge
from raydix.runtime.actors.pulls.nixl_process import NixlUnusable
from raydix.runtime.actors.pulls.page_stream import PageStream, dial_stream
from raydix.runtime.actors.pulls.peer_link import PeerLink
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome
from raydix.runtime.actors.pulls.stalls import wait_for_stall
from raydix.runtime.cache.host.events import FromPeer, PeerAttached, PeerLost
from raydix.runtime.messages.host import ObjectsDone
from raydix.runtime.messages.pulls import OpenStreams

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 5.0


class Puller:
    """Owns: the link to one other node, which is dialled again whenever it is lost."""

    def __init__(self, record: PeerRecord, home: PullHome) -> None:
        self._record = record
        self._home = home
        self._has_nixl_failed = False
        self.is_linked = False
        """Whether pages can be pulled now."""

    async def run(self) -> None:
        """Pull until cancelled; why a node refuses is said once."""
        delay_s = _FIRST_RETRY_S
        last_refusal: str | None = None
        while True:
            try:
                await self._pull()
                delay_s, last_refusal = _FIRST_RETRY_S, None
            except (LinkRefused, LinkSilent) as refusal:
                if str(refusal) != last_refusal:
                    logger.warning("%s lets nobody pull: %s", self._record.name, refusal)
                last_refusal = str(refusal)
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
            carrier, streams = await self._open(opening)
        except BaseException:
            link.close()
            raise

        self.is_linked = True
        try:
            await _Session(link, streams, carrier, home).run(record.name)
        finally:
            self.is_linked = False
            if carrier.failure is not None:
                self._give_nixl_up(carrier.failure)

    async def _open(self, opening: OpenStreams) -> tuple[Carrier, list[PageStream]]:
        """Open what carries pages in a thread; what that opens for nobody any more is closed."""
        opened = asyncio.ensure_future(asyncio.to_thread(self._open_streams, opening))
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            with contextlib.suppress(LinkRefused, LinkSilent):
                carrier, streams = await opened
                _close(carrier, streams)
            raise

    def _open_streams(self, opening: OpenStreams) -> tuple[Carrier, list[PageStream]]:
        """What carries the pages of a link, and its streams. Raises LinkRefused or LinkSilent."""
        home, address = self._home, TcpAddress(self._record.host, opening.port)
        carrier = self._open_carrier(opening)
        hello = replace(home.hello, role=carrier.role, ticket=opening.ticket)
        streams: list[PageStream] = []
        try:
            for _ in range(home.num_streams):
                streams.append(dial_stream(address, hello, self._record.secret, home.dialer_tls))
        except BaseException:
            _close(carrier, streams)
            raise
        return carrier, streams

    def _open_carrier(self, opening: OpenStreams) -> Carrier:
        """NIXL where both ends have it and it has not failed between them; else TCP."""
        home, access = self._home, opening.access
        if access is not None and home.why_not_nixl is None and not self._has_nixl_failed:
            try:
                return LeaseCarrier.open(
                    home.arena.location, home.users, access, home.namespace, home.num_streams
                )
            except NixlUnusable as error:
                self._give_nixl_up(str(error))
        return TcpCarrier(home.namespace)

    def _give_nixl_up(self, reason: str) -> None:
        """TCP from now on, with this peer, until either end starts anew."""
        self._has_nixl_failed = True
        logger.warning(
            "pages of %s come by TCP from now on, as NIXL has failed: %s", self._record.name, reason
        )


def _close(carrier: Carrier, streams: list[PageStream]) -> None:
    """Give back what no thread uses."""
    carrier.close()
    for stream in streams:
        stream.close()
        stream.release()


class _Session:
    """Owns: the threads of one link's streams, from the first page to the end of all of them."""

    def __init__(
        self, link: SocketLink, streams: list[PageStream], carrier: Carrier, home: PullHome
    ) -> None:
        self._streams = streams
        self._carrier = carrier
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._arriving = ArrivingPages(home.arena, self._answer)
        self._link = PeerLink(link, self._arriving, PeerJudge(home.arena.geometry.num_groups))
        self._connection = home.links.open(self._link)
        self._threads = [
            threading.Thread(target=self._receive, args=[*each], name="pull", daemon=True)
            for each in enumerate(streams)
        ]

    async def run(self, name: str) -> None:
        """Serve the link until it ends, or one of its streams, or until it stalls."""
        post = self._home.post
        post(PeerAttached(self._connection, name))
        kind = "sent" if isinstance(self._carrier, TcpCarrier) else "read by NIXL"
        logger.info("pages can be pulled from %s; they are %s", name, kind)
        for thread in self._threads:
            thread.start()
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                post(FromPeer(self._connection, await self._link.receive()))
        except (LinkClosed, PeerMisbehaves) as error:
            logger.info("the link to %s is lost (%s) and dialled again", name, error)
        finally:
            watch.cancel()
            self._home.links.close(self._connection)
            for stream in self._streams:
                stream.close()
            # Only then nobody writes the pages any more that were to come.
            await asyncio.shield(asyncio.to_thread(self._join))
            post(PeerLost(self._connection))

    def _receive(self, number: int, stream: PageStream) -> None:
        try:
            self._carrier.receive(number, stream, self._arriving)
        finally:
            # Pages that it should have brought come by no other.
            self._call(self._link.close)

    def _answer(self, done: ObjectsDone) -> None:
        self._call(self._home.post, FromPeer(self._connection, done))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call a function; a loop that has ended needs to know nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    async def _watch(self) -> None:
        """End the link of a peer that is to send pages and sends nothing."""
        await wait_for_stall(self._arriving.progress, self._home.patience_s)
        logger.warning("a peer owes pages and sends nothing: its link is closed")
        self._link.close()

    def _join(self) -> None:
        self._carrier.close()
        for thread in self._threads:
            thread.join()
