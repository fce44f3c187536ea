"""Pulls between nodes: from whom a HostMemory pulls pages, and who pulls from it."""

import asyncio
import logging
import secrets
from collections.abc import Collection

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome
from raydix.runtime.actors.pulls.puller import Puller
from raydix.runtime.actors.pulls.readers import ReaderLinks
from raydix.runtime.cache.host.events import AskForKeys, SendPages, ToReader, ToStorage

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32


class Pulls:
    """Owns: links to other nodes, in both directions. Belongs to the actor's loop."""

    def __init__(self, home: PullHome) -> None:
        self._home = home
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._readers = ReaderLinks(home, self._secret)
        self._pullers: dict[PeerRecord, tuple[Puller, asyncio.Task[None]]] = {}

    async def open(self, address: TcpAddress, host: str) -> PeerRecord:
        """Listen for other nodes; returns how they find this one, by `host`.

        Raises AddressTaken, or OSError if the address cannot be bound.
        """
        port = await self._readers.open(address)
        return PeerRecord(
            name=self._home.hello.name,
            host=host,
            port=port,
            namespace=self._home.namespace.digest,
            secret=self._secret,
        )

    def follow(self, records: Collection[PeerRecord]) -> None:
        """Pull from these nodes, and from no others; this one and those of other pages are none."""
        home = self._home
        wanted = {
            record
            for record in records
            if record.name != home.hello.name and record.namespace == home.namespace.digest
        }
        for record in self._pullers.keys() - wanted:
            _, task = self._pullers.pop(record)
            task.cancel()
        for record in wanted - self._pullers.keys():
            puller = Puller(record, home)
            self._pullers[record] = (puller, asyncio.create_task(puller.run()))

    def order(self, effect: ToStorage) -> bool:
        """Carry out what the core orders of a peer; False if that connection is no peer's."""
        for puller, _ in self._pullers.values():
            session = puller.session
            if session is not None and session.connection == effect.connection:
                session.order(effect.message)
                return True
        return False

    def ask_for_keys(self, effect: AskForKeys) -> None:
        """Have a peer tell its keys once more, if it is still there."""
        for puller, _ in self._pullers.values():
            session = puller.session
            if session is not None and session.connection == effect.connection:
                session.ask_for_keys()

    def tell(self, effect: ToReader) -> None:
        """Send a message to a reader, if it is still there."""
        self._readers.tell(effect)

    def send(self, effect: SendPages) -> None:
        """Send pages to a reader."""
        self._readers.send(effect)

    async def close(self) -> None:
        """End all links, and wait until no thread touches the arena."""
        tasks = [task for _, task in self._pullers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pullers.clear()
        await self._readers.close()
