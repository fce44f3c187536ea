"""Two HostMemories' shells for tests, without cores: what would be told is kept in lists."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.numbered_links import NumberedLinks
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome
from raydix.runtime.actors.pulls.pulls import Pulls
from raydix.runtime.cache.host.events import (
    FromPeer,
    FromReader,
    PeerAttached,
    PeerEvent,
    PeerLost,
    SendPages,
)
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, ReadObjects
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.storage.namespace import make_namespace
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import content, layout_of, make_key

WAIT_S = 60.0
"""The time for what must come; nothing is measured by it."""
NUM_PAGES = 256
Event = TypeVar("Event", bound=PeerEvent)


class Shell:
    """One node: its arena holds the content of key i in page i, unless it is to pull."""

    def __init__(
        self, name: str, payload_bytes: int, files: TlsFiles | None = None, **changes: object
    ) -> None:
        layout = layout_of(payload_bytes)
        self.arena = HostArena.create(layout, NUM_PAGES * layout.host_page_bytes(0))
        self.events: list[PeerEvent] = []
        self._has_come = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self.links = NumberedLinks()
        self.home = PullHome(
            hello=Hello(role=Role.HOST_MEMORY, name=name, incarnation=1, pid=1),
            arena=self.arena,
            users=ArenaUsers(self.arena.users),
            namespace=make_namespace(b"model", "v1", layout),
            post=self._post,
            links=self.links,
            dialer_tls=None if files is None else files.for_dialer(),
            listener_tls=None if files is None else files.for_listener(),
            **changes,  # type: ignore[arg-type]
        )
        self.pulls = Pulls(self.home)
        self.lacks: set[int] = set()
        self.answers_pulls = True
        self._news = asyncio.Event()

    def fill(self) -> None:
        for page in range(NUM_PAGES):
            payload = self.arena.payload(HostPageId(page), 0)
            payload[:] = content(page, len(payload))

    def _post(self, event: PeerEvent) -> None:
        self.events.append(event)
        self._news.set()
        match event:
            case FromReader(connection, PullPages() as pull) if self.answers_pulls:
                self.send(connection, pull)

    def send(self, connection: ConnectionId, pull: PullPages) -> None:
        """Do as a core does that holds all pages but those which it lacks."""
        keys = [pull.keys[at : at + 32] for at in range(0, len(pull.keys), 32)]
        pages = [int.from_bytes(key, "big") for key in keys]
        found = tuple(None if page in self.lacks else HostPageId(page) for page in pages)
        self.pulls.send(SendPages(connection, pull.batch_id, found))

    async def wait_for(self, kind: type[Event], number: int = 1) -> Event:
        """The event of this kind that came as the n-th."""
        return (await self.wait_until(lambda: self.of(kind)[:number], number))[-1]

    async def wait_until(self, found: Callable[[], list[Event]], number: int) -> list[Event]:
        async with asyncio.timeout(WAIT_S):
            while len(events := found()) < number:
                self._news.clear()
                await self._news.wait()
        return events

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def pull(self, batch: int, keys: Sequence[int]) -> None:
        """Order pages of the peer that attached last, each into the page of its number."""
        order = ReadObjects(
            batch_id=BatchId(batch),
            keys=b"".join(map(make_key, keys)),
            host_page_ids=int32_array(keys),
        )
        self.links.send(self.of(PeerAttached)[-1].connection, order)

    async def statuses(self, batch: int) -> list[ObjectStatus]:
        """What has become of the pages of a batch."""

        [answer] = await self.wait_until(lambda: self.answers(batch), 1)
        assert isinstance(answer.message, ObjectsDone)
        return [ObjectStatus(code) for code in answer.message.statuses]

    def answers(self, batch: int) -> list[FromPeer]:
        """The answers to batches of this number, over all links there were."""
        return [
            event
            for event in self.of(FromPeer)
            if isinstance(event.message, ObjectsDone) and event.message.batch_id == batch
        ]

    async def pull_again(self, batch: int, keys: Sequence[int]) -> None:
        """Order pages over each link that comes, until one has brought them."""
        while not self.answers(batch):
            num_lost = len(self.of(PeerLost))
            await self.wait_for(PeerAttached, num_lost + 1)
            self.pull(batch, keys)
            await self.wait_until(
                lambda: [*self.answers(batch), *self.of(PeerLost)[num_lost:]],  # noqa: B023
                1,
            )

    def holds(self, page: int) -> bool:
        payload = self.arena.payload(HostPageId(page), 0)
        return bytes(payload) == content(page, len(payload))


@asynccontextmanager
async def two_shells(
    payload_bytes: int = 4000, files: TlsFiles | None = None, **changes: object
) -> AsyncIterator[tuple[Shell, Shell, PeerRecord]]:
    """A node that holds pages and one that can pull; the record finds the first."""
    holder = Shell("holder", payload_bytes, files, **changes)
    puller = Shell("puller", payload_bytes, files, **changes)
    holder.fill()
    record = await holder.pulls.open(TcpAddress("127.0.0.1", 0))
    try:
        yield holder, puller, record
    finally:
        await puller.pulls.close()
        await holder.pulls.close()


class Wire:
    """A port before another one that a test can hold up, or break. Bytes pass as they are."""

    def __init__(self) -> None:
        self._target: TcpAddress | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_holding = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def leads_to(self, address: TcpAddress) -> None:
        self._target = address

    def hold(self) -> None:
        """Let no byte pass."""
        self._flows.clear()
        self._is_holding.clear()

    async def wait_held(self) -> None:
        """Return once some bytes wait to pass."""
        async with asyncio.timeout(WAIT_S):
            await self._is_holding.wait()

    def let_go(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Break all connections there are."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target is not None
        there, back = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if not self._flows.is_set():
                    self._is_holding.set()
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
