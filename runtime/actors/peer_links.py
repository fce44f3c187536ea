"""The Scheduler's links to GPU actors and to HostMemory."""

import logging
import socket
from collections.abc import Callable

from raydix.ids import ConnectionId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.messages.host import FromHost
from raydix.runtime.messages.plan import FromRank
from raydix.runtime.scheduler.events import (
    Event,
    HostAttached,
    HostLost,
    HostMessage,
    RankAttached,
    RankLost,
    RankMessage,
)

logger = logging.getLogger(__name__)


class PeerLinks:
    """Owns: the links to ranks, HostMemory and followers, by the numbers that the core knows."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        """`post` gives the core an event."""
        self._post = post
        self._num_ranks = 0
        self._ranks: dict[int, Link] = {}
        self._host: Link | None = None
        self._links: dict[ConnectionId, Link] = {}
        self._num_connections = 0

    def expect(self, num_ranks: int) -> None:
        """Let so many ranks come; before that, none is the engine's."""
        self._num_ranks = num_ranks

    async def serve_rank(self, link: Link) -> None:
        """Tell the core what a GPU actor says, until its link closes or it comes anew."""
        hello = link.hello
        if hello.rank is None or not 0 <= hello.rank < self._num_ranks:
            logger.warning("%s is no rank of this engine", hello)
            return

        rank = int(hello.rank)
        # A rank that comes back may not have been missed yet.
        older = self._ranks.get(rank)
        if older is not None:
            self._lose_rank(rank, older)
        self._ranks[rank] = link
        connection = self.add(link)
        self._post(
            RankAttached(
                rank=rank, connection=connection, incarnation=hello.incarnation, pid=hello.pid
            )
        )

        try:
            while True:
                message = await link.receive()
                if self._ranks.get(rank) is not link or not isinstance(message, FromRank):
                    break
                self._post(RankMessage(rank=rank, connection=connection, message=message))
        except LinkClosed:
            pass

        if self._ranks.get(rank) is link:
            self._lose_rank(rank, link)

    def _lose_rank(self, rank: int, link: Link) -> None:
        del self._ranks[rank]
        link.close()
        self._post(RankLost(rank=rank, connection=self.remove(link)))

    async def serve_host(self, link: Link) -> None:
        """Tell the core what HostMemory says, until its link closes or it comes anew."""
        if self._host is not None:
            self._lose_host(self._host)
        self._host = link
        connection = self.add(link)
        # It is of this node, where its process tells it apart.
        l2 = f"{link.hello.name}:{link.hello.pid}@{socket.gethostname()}"
        self._post(HostAttached(connection=connection, l2=l2))

        try:
            while True:
                message = await link.receive()
                if self._host is not link or not isinstance(message, FromHost):
                    break
                self._post(HostMessage(connection=connection, message=message))
        except LinkClosed:
            pass

        if self._host is link:
            self._lose_host(link)

    def _lose_host(self, link: Link) -> None:
        self._host = None
        link.close()
        self._post(HostLost(connection=self.remove(link)))

    def add(self, link: Link) -> ConnectionId:
        """Number a new link, so that effects can name this very one."""
        self._num_connections += 1
        connection = ConnectionId(self._num_connections)
        self._links[connection] = link
        return connection

    def remove(self, link: Link) -> ConnectionId:
        """Forget a link that has closed; returns its number."""
        connection = next(number for number, known in self._links.items() if known is link)
        del self._links[connection]
        return connection

    def get(self, connection: ConnectionId) -> Link | None:
        """The link that the core knows by this number, if it is still there."""
        return self._links.get(connection)
