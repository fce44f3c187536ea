"""The clients of a Scheduler: what they ask goes to its turns, and its news to them."""

import asyncio
import itertools
import logging
from collections.abc import Callable

from raydix.ids import ClientId
from raydix.runtime.actors.links.link import Link, LinkClosed, send_if_open
from raydix.runtime.actors.outbox import ClientOutbox
from raydix.runtime.messages.arrays import Int32Array, Int64Array
from raydix.runtime.messages.client import FromClient, RequestDelta
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.scheduler.events import ClientGone, ClientMessage
from raydix.runtime.scheduler.newest_links import NewestLinks

logger = logging.getLogger(__name__)

_BURST = 64
"""The most messages of one client taken in a row, so that others get their turn if it floods us."""


class ClientLinks:
    """Owns: the links to clients, and what these have not been sent.

    `post` takes an event for a later turn of the Scheduler.
    """

    def __init__(self, post: Callable[[ClientMessage | ClientGone], None]) -> None:
        self._post = post
        self._newest = NewestLinks()
        self._outboxes: dict[ClientId, ClientOutbox] = {}
        self._num_served = 0
        self._unsent: set[ClientId] = set()
        """The clients that have news waiting."""
        self.num_slow = 0
        """The clients whose link was closed because they read too slowly."""

    @property
    def num_connected(self) -> int:
        """The number of clients that are connected now."""
        return len(self._outboxes)

    async def serve(self, link: Link) -> None:
        """Take what a client asks until its link ends, or its next one is there."""
        self._num_served += 1
        name = link.hello.name
        client_id = ClientId(f"{name}#{self._num_served}")
        given_up = self._newest.open(name, link.hello.incarnation, client_id)
        if given_up == client_id:
            return
        if given_up is not None:
            # Before anything that is asked over the new one.
            self._lose(given_up)
        outbox = self._outboxes[client_id] = ClientOutbox(link)
        try:
            await self._hear(client_id, link)
        except LinkClosed:
            pass
        finally:
            self._newest.close(name, client_id)
            self.num_slow += outbox.was_too_slow
            self._lose(client_id)

    def _lose(self, client_id: ClientId) -> None:
        """Give up a link, unless that was done."""
        outbox = self._outboxes.pop(client_id, None)
        if outbox is None:
            return
        outbox.link.close()
        self._unsent.discard(client_id)
        self._post(ClientGone(client_id=client_id))

    def add(self, client_id: ClientId, delta: RequestDelta) -> None:
        """Send this with the next news, unless the client has gone."""
        outbox = self._outboxes.get(client_id)
        if outbox is not None:
            outbox.add(delta)
            self._unsent.add(client_id)

    def add_tokens(self, client_id: ClientId, askings: Int64Array, token_ids: Int32Array) -> None:
        """Send a token of each asking with the next news, unless the client has gone."""
        outbox = self._outboxes.get(client_id)
        if outbox is not None:
            outbox.add_tokens(askings, token_ids)
            self._unsent.add(client_id)

    def tell(self, client_id: ClientId, news: EngineNews) -> None:
        """Tell a client what it has asked for, unless it has gone."""
        outbox = self._outboxes.get(client_id)
        send_if_open(None if outbox is None else outbox.link, news)

    def send_news(self) -> bool:
        """Send each client its news: one frame, unless that would be a large one.

        Returns whether all was sent; clients that do not read leave something.
        """
        for client_id in tuple(self._unsent):
            outbox = self._outboxes.get(client_id)
            if outbox is None or outbox.flush():
                self._unsent.discard(client_id)
        return not self._unsent

    async def _hear(self, client_id: ClientId, link: Link) -> None:
        """Pass on what a client asks until it says something else. Raises LinkClosed."""
        for num_taken in itertools.count(1):
            message = await link.receive()
            if not isinstance(message, FromClient):
                logger.warning(
                    "%s sends a %s; its link is closed", link.hello, type(message).__name__
                )
                return
            self._post(ClientMessage(client_id=client_id, message=message))
            if num_taken % _BURST == 0:
                await asyncio.sleep(0)
