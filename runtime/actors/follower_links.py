"""The links to those who follow the Scheduler's caches: what they are told goes out in batches."""

import logging
from collections.abc import Callable

from raydix.ids import ConnectionId
from raydix.runtime.actors.links.link import Link, LinkClosed, send_if_open
from raydix.runtime.messages.kv_events import KvEvent, KvNews
from raydix.runtime.scheduler.events import FollowerAttached, FollowerLost, TellFollower

logger = logging.getLogger(__name__)

_BATCH_S = 0.01
"""The time for which news is gathered: a frame costs more than the events in it."""


class FollowerLinks:
    """Owns: the links to followers, and what they have not been sent.

    A follower that does not read loses its link, as any peer does, and begins anew. `post` takes an
    event for a later turn of the Scheduler.
    """

    def __init__(self, post: Callable[[FollowerAttached | FollowerLost], None]) -> None:
        self._post = post
        self._links: dict[ConnectionId, Link] = {}
        self._unsent: dict[ConnectionId, tuple[list[KvEvent], bool]] = {}
        self._next_s = 0.0
        """The time before which nothing is sent."""

    @property
    def num_connected(self) -> int:
        """The number of followers that are connected now."""
        return len(self._links)

    async def serve(self, link: Link, connection: ConnectionId) -> None:
        """Keep a follower until its link ends; it says nothing itself."""
        self._links[connection] = link
        self._post(FollowerAttached(connection=connection))
        try:
            message = await link.receive()
            logger.warning("%s sends a %s; its link is closed", link.hello, type(message).__name__)
        except LinkClosed:
            pass
        finally:
            del self._links[connection]
            self._unsent.pop(connection, None)
            self._post(FollowerLost(connection=connection))

    def add(self, effect: TellFollower) -> None:
        """Send this with the next batch, unless the follower has gone."""
        if effect.connection in self._links:
            events, _ = self._unsent.get(effect.connection, ([], False))
            events.extend(effect.events)
            self._unsent[effect.connection] = events, effect.is_whole

    def send_news(self, now_s: float) -> float | None:
        """Send what has been gathered, if it is time. Returns when to come back; None: never."""
        if not self._unsent:
            return None
        if now_s < self._next_s:
            return self._next_s
        self._next_s = now_s + _BATCH_S
        unsent, self._unsent = self._unsent, {}
        for connection, (events, is_whole) in unsent.items():
            news = KvNews(events=tuple(events), is_whole=is_whole)
            send_if_open(self._links.get(connection), news)
        return None
