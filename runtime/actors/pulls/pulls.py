"""Pulls between nodes: from whom a HostMemory pulls pages, and who pulls from it."""

import asyncio
import logging
import secrets
from collections.abc import Collection, Coroutine
from typing import Any, Protocol

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import AddressTaken
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome, PullSetup
from raydix.runtime.actors.pulls.puller import Puller
from raydix.runtime.actors.pulls.readers import ReaderLinks
from raydix.runtime.cache.host.events import SendPages

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32
_FIND_INTERVAL_S = 2.0
"""Seconds between looks for nodes that have come: a prompt more or less that is computed."""


class PeerFinder(Protocol):
    """Knows where other HostMemories are."""

    def own_host(self) -> str:
        """The address by which other nodes reach this one."""

    async def find(self) -> Collection[PeerRecord]:
        """All HostMemories that can be pulled from; those that do not answer now may lack."""


class Pulls:
    """Owns: which nodes pages are pulled from, and the port at which others pull.

    Belongs to the actor's loop.
    """

    def __init__(self, home: PullHome) -> None:
        self._home = home
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._readers = ReaderLinks(home, self._secret)
        self._pullers: dict[PeerRecord, tuple[Puller, asyncio.Task[None]]] = {}
        self._finding: asyncio.Task[None] | None = None
        self._record: PeerRecord | None = None

    @property
    def record(self) -> PeerRecord:
        """How other nodes find this one, once it listens."""
        assert self._record is not None, "it is asked for once it is there"
        return self._record

    async def open(self, address: TcpAddress) -> PeerRecord:
        """Listen for other nodes; returns how they find this one. Raises ConfigError."""
        try:
            port = await self._readers.open(address)
        except (AddressTaken, OSError) as error:
            raise ConfigError(
                f"other nodes cannot be listened for at {address.host_port} ({error}). Set "
                "cache.l2.pull.host to an address of this host, and cache.l2.pull.port to a free "
                "port with a free one behind it, or to null."
            ) from error
        self._record = PeerRecord(
            name=self._home.hello.name,
            host=address.host,
            port=port,
            namespace=self._home.namespace.digest,
            secret=self._secret,
        )
        return self._record

    def look_for_peers(self, finder: PeerFinder) -> None:
        """Pull from all nodes that can be found, from now on."""
        self._finding = _start(self._find(finder))

    async def _find(self, finder: PeerFinder) -> None:
        while True:
            try:
                self.follow(await finder.find())
            except OSError as error:
                logger.info("other nodes cannot be looked for: %s", error)
            await asyncio.sleep(_FIND_INTERVAL_S)

    def follow(self, records: Collection[PeerRecord]) -> None:
        """Pull from these nodes; of others only while they are linked.

        This one, and those whose pages are of another namespace, are none.
        """
        home = self._home
        wanted = {
            record
            for record in records
            if record.name != home.hello.name and record.namespace == home.namespace.digest
        }
        for record in self._pullers.keys() - wanted:
            puller, task = self._pullers[record]
            if not puller.is_linked:
                task.cancel()
                del self._pullers[record]
        for record in wanted - self._pullers.keys():
            puller = Puller(record, home)
            self._pullers[record] = (puller, _start(puller.run()))

    def send(self, effect: SendPages) -> None:
        """Send pages to a reader."""
        self._readers.send(effect)

    async def close(self) -> None:
        """End all links, and wait until no thread touches the arena."""
        tasks = [task for _, task in self._pullers.values()]
        tasks += [] if self._finding is None else [self._finding]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pullers.clear()
        await self._readers.close()


async def open_pulls(setup: PullSetup, home: PullHome, finder: PeerFinder) -> Pulls:
    """Listen for other nodes, and look for them. Raises ConfigError."""
    pulls = Pulls(home)
    section = setup.section
    await pulls.open(TcpAddress(section.host or finder.own_host(), section.port or 0))
    pulls.look_for_peers(finder)
    return pulls


def _start(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(coroutine)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    """Log a failure at once: whoever awaits the task does so at the end of all pulls."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("pages are not exchanged any more with some nodes", exc_info=error)
