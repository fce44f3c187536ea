"""The port at which clients on other hosts reach an engine."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from raydix.errors import ConfigError
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import AddressTaken, Link, LinkClosed
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_link import SocketLink
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.messages.hello import Hello, Role

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where clients connect, and what they must know."""

    address: TcpAddress
    secret: bytes | None = field(repr=False)
    """The secret of clients; None: the engine's own, which only its user's processes on its host
    can read.
    """


class Gateway:
    """Owns: a TCP port, and the links of clients that came by it.

    It stands for the Supervisor and for the Scheduler: a client says whom it seeks. Its secret is
    not the one between actors, and what connects here is a client, whatever it says: no GPU actor.
    """

    def __init__(
        self,
        name: str,
        settings: GatewaySettings,
        record: EngineRecord,
        answer_call: Callable[[Link], Awaitable[None]],
    ) -> None:
        """`record`: how the Scheduler is reached. `answer_call` serves links to the Supervisor."""
        self._name = name
        self._settings = settings
        self._record = record
        self._answer_call = answer_call
        self._listener: Listener | None = None

    async def open(self, tls: TlsFiles | None) -> str:
        """Listen; returns `HOST:PORT`, with the port that was chosen. Raises ConfigError."""
        wanted = self._settings.address
        own = Hello(role=Role.SUPERVISOR, name=self._name, incarnation=1, pid=os.getpid())
        try:
            self._listener = await listen(
                str(wanted),
                own,
                self._settings.secret or self._record.secret,
                self._serve,
                tls=None if tls is None else tls.for_listener(),
            )
        except (AddressTaken, OSError) as error:
            raise ConfigError(
                f"clients cannot be listened for at {wanted.host_port} ({error}). Give an address "
                "of this host and a free port; port 0 takes one."
            ) from error
        return replace(wanted, port=self._listener.port).host_port

    def record_at(self, listens_at: str) -> EngineRecord:
        """How the engine is reached from other hosts, at the address that `open` returned."""
        address = str(TcpAddress.parse(listens_at))
        return EngineRecord(
            control_address=address,
            client_address=address,
            secret=self._settings.secret or self._record.secret,
            tls=TlsFiles.of(os.environ),
        )

    def withdraw(self) -> None:
        """Take no new clients; links stay. May be called twice, and before `open`."""
        if self._listener is not None:
            self._listener.withdraw()

    async def close(self) -> None:
        """Take no new clients, and end the links of those that there are."""
        if self._listener is not None:
            await self._listener.close()

    async def _serve(self, link: SocketLink) -> None:
        hello = link.hello
        if hello.role is Role.CLIENT and hello.seeks is Role.SUPERVISOR:
            await self._answer_call(link)
        elif hello.role is Role.CLIENT and hello.seeks is Role.SCHEDULER:
            await self._relay(link)
        else:
            logger.warning("%s has no business at the gateway", hello)
        link.close()

    async def _relay(self, outer: SocketLink) -> None:
        """Pass messages on between a client and the Scheduler until either ends."""
        try:
            inner = await connect(self._record.client_address, outer.hello, self._record.secret)
        except (LinkClosed, OSError) as error:
            logger.warning("the Scheduler does not take %s: %s", outer.hello, error)
            return

        pumps = [asyncio.create_task(_pump(outer, inner)), asyncio.create_task(_pump(inner, outer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            inner.close()


async def _pump(source: SocketLink, sink: SocketLink) -> None:
    """Pass messages on one way until either link ends."""
    with contextlib.suppress(LinkClosed):
        while True:
            sink.send(await source.receive())
            # No more is fetched for a peer that does not read: by what waits for it the Scheduler
            # sees that a client is slow, and merges its news.
            await sink.drained()
