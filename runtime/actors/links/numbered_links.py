"""The open links of one actor, by numbers that are used once."""

import itertools

from raydix.ids import ConnectionId
from raydix.runtime.actors.links.link import Link, send_if_open
from raydix.runtime.messages.codec import Message


class NumberedLinks:
    """Owns: which link has which number: what is meant for one never goes over the next."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._links: dict[ConnectionId, Link] = {}

    def open(self, link: Link) -> ConnectionId:
        """Number a link that has just been opened."""
        connection = ConnectionId(next(self._numbers))
        self._links[connection] = link
        return connection

    def close(self, connection: ConnectionId) -> None:
        """Close a link that is open; its number means nothing from now on."""
        self._links.pop(connection).close()

    def send(self, connection: ConnectionId, message: Message) -> None:
        """Send this over the link, if it is still there."""
        send_if_open(self._links.get(connection), message)
