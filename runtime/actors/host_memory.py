"""The HostMemory actor: a shell around `HostMemoryCore` and the node's arena."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, assert_never

from raydix.errors import AccountingError
from raydix.ids import ConnectionId, SchedulerName
from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.figures_log import FiguresLog
from raydix.runtime.actors.flushes import Flushes
from raydix.runtime.actors.host_metrics import HOST_METRICS, PAGE_TOKENS
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused
from raydix.runtime.actors.links.numbered_links import NumberedLinks
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import exit_process, wait_for_exit
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome, PullSetup
from raydix.runtime.actors.pulls.pulls import PeerFinder, Pulls, open_pulls
from raydix.runtime.actors.storage_news import INTERVAL_S as STORAGE_INTERVAL_S
from raydix.runtime.actors.storage_news import StorageNews
from raydix.runtime.actors.turns import Turns
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import (
    AskForKeys,
    DetachStorage,
    FlushHost,
    FlushStorage,
    FromScheduler,
    FromStorage,
    HostEffect,
    HostEvent,
    HostFlushed,
    ProcessExited,
    RetireStorage,
    SchedulerAttached,
    SchedulerEnded,
    SchedulerLost,
    SendPages,
    SetGenerations,
    StorageAttached,
    StorageFlushed,
    StorageLost,
    StorageRetired,
    Tick,
    ToReader,
    ToScheduler,
    ToStorage,
    WatchProcess,
)
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ObjectsDone, ToHost
from raydix.runtime.messages.pulls import TellKeys
from raydix.runtime.metrics import read_samples
from raydix.runtime.phases import phase
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena

logger = logging.getLogger(__name__)

_RETRY_S = 0.05
_DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemorySetup:
    """What a HostMemory starts with; its incarnations differ only in whether there is L3."""

    settings: HostSettings
    storage_address: str
    """The address at which HostMemory listens for the storage actor."""
    storage_secret: bytes = field(repr=False)
    former_users: tuple[SchedulerName, ...] = ()
    """The Schedulers that have used an arena which was taken back; see `FormerArena`."""
    pull: PullSetup | None = None
    """How pages are pulled from other nodes and sent to them; None: they are not."""


class HostMemoryActor:
    """Owns: the node's `HostMemoryCore`, the arena's generation table, and its links.

    State changes only in a turn, which runs on the actor's event loop and never waits. Links are
    numbered as they come, so that what is meant for one never goes over the next.

    It dials the Scheduler of each engine that it follows, and storage dials it. HostMemories of
    other nodes dial it, and it dials them, if pages are pulled.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        on_fatal: Callable[[], None] = exit_process,
        exporter: MetricsExporter | None = None,
        finder: PeerFinder | None = None,
    ) -> None:
        """`finder`: knows other nodes' HostMemories; without it there are none."""
        self._name = name
        self._incarnation = incarnation
        self._exporter = exporter
        self._finder = finder
        self._pulls: Pulls | None = None
        self.arena: HostArena | None = None
        self._is_adopted = False
        self._page_tokens = 0
        self._core: HostMemoryCore | None = None
        self._turns = Turns[HostEvent, HostEffect](Tick(), self._carry_out, on_fatal=on_fatal)

        self._links = NumberedLinks()
        """The links to Schedulers, storage and other nodes, while they are open."""
        self._followed: dict[SchedulerName, asyncio.Task[None]] = {}
        """Who stays connected to each Scheduler."""
        self._storage: ConnectionId | None = None
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched: set[int] = set()
        """The processes whose end HostMemory waits for."""

        self._storage_log = FiguresLog(StorageNews(), STORAGE_INTERVAL_S)
        self._storage_attached = asyncio.Event()
        self._flushes = Flushes()
        self._storage_retired = asyncio.Event()

    def __repr__(self) -> str:
        return f"HostMemory({self._name}, incarnation {self._incarnation})"

    async def create_arena(
        self, layout: KvLayout, size_bytes: int, folder: str | None = None
    ) -> ArenaLocation:
        """Make a new arena. Raises ConfigError if its memory is not there.

        With `folder`, on a tmpfs, its file can be given a name there.
        """
        with phase(logger, f"arena of {format_bytes(size_bytes)} made"):
            self.arena = await asyncio.to_thread(
                HostArena.create, layout, size_bytes, folder=folder
            )
        return self.arena.location

    async def adopt_arena(self, location: ArenaLocation) -> ArenaLocation:
        """Take over an earlier arena from a process that maps it. Raises OSError if that ended."""
        self.arena = HostArena.attach(location)
        self._is_adopted = True
        return self.arena.location

    async def start(self, setup: HostMemorySetup, users: ArenaUsers) -> None:
        """Begin to decide within the arena, and listen for storage; nobody is followed yet."""
        if self.arena is None:
            raise AccountingError("HostMemory starts without an arena")

        # An adopted arena's generations go on from where they are: old copies may be under way.
        former = (
            FormerArena(self.arena.generations, setup.former_users) if self._is_adopted else None
        )
        self._core = HostMemoryCore(self.arena.geometry, setup.settings, former)
        self._turns.start(self._core)
        self._page_tokens = setup.settings.page_size

        self._listener = await listen(
            setup.storage_address, self._hello(), setup.storage_secret, self._serve_storage
        )
        if setup.pull is not None and self._finder is not None:
            home = PullHome.of(
                setup.pull, self._hello(), self.arena, users, self._links, self._turns.post
            )
            self._pulls = await open_pulls(setup.pull, home, self._finder)
        spare_long_lived_objects()
        self._storage_log.start(self.stats)
        if self._exporter is not None:
            self._exporter.start(lambda: read_samples(HOST_METRICS, self.stats()))

    def follow(self, name: SchedulerName, address: str, secret: bytes) -> None:
        """Stay connected to whichever process of this Scheduler listens at the address.

        `name` is that of one engine's Scheduler, across its restarts, and never of another one.
        """
        if name not in self._followed:
            self._followed[name] = self._add_task(self._dial(name, address, secret))

    def unfollow(self, name: SchedulerName) -> None:
        """Hang up on a Scheduler that is about to end; what it has of L2 is its own until then."""
        if (following := self._followed.pop(name, None)) is not None:
            following.cancel()

    def forget(self, name: SchedulerName) -> None:
        """A Scheduler has ended for good, and every process has exited that copied for it."""
        self.unfollow(name)
        self._turns.post(SchedulerEnded(name))

    def peer_record(self) -> PeerRecord | None:
        """Where other nodes may pull pages; None: nowhere."""
        return None if self._pulls is None else self._pulls.record

    async def wait_storage(self) -> None:
        """Return once a storage actor is attached."""
        await self._storage_attached.wait()

    async def retire_storage(self, timeout_s: float) -> bool:
        """Order nothing more from L3. Returns whether all that was ordered ended in time."""
        self._storage_retired.clear()
        self._turns.post(RetireStorage())
        try:
            async with asyncio.timeout(timeout_s):
                await self._storage_retired.wait()
        except TimeoutError:
            return False
        return True

    def detach_storage(self) -> None:
        """No storage actor is left: L3 is not in use until another one attaches."""
        self._close_storage()
        self._turns.post(DetachStorage())

    def stats(self) -> dict[str, Any]:
        """The core's figures, and how many tokens a page has."""
        stats = self._running_core().stats()
        stats |= {PAGE_TOKENS: self._page_tokens, "incarnation": self._incarnation}
        if (off_since_s := stats.pop("l3_off_since_s", None)) is not None:
            # The clock of the core is nobody else's.
            stats["l3_off_at_s"] = time.time() - (time.monotonic() - off_since_s)
        return stats

    async def flush(self) -> int:
        """Drop all of L2 that nobody reads or writes.

        Returns the number of pages; flushes that run at once all return their sum.
        """
        flush = self._flushes.expect_host()
        # Taken at once, so that an earlier flush which ends meanwhile does not answer for this one.
        self._turns.take_now(FlushHost())
        return await flush

    async def flush_storage(self) -> str:
        """Remove this namespace's objects from L3; returns the status by name."""
        if (flush := self._flushes.storage) is None:
            flush = self._flushes.expect_storage()
            self._turns.post(FlushStorage())

        # Shielded: others may wait for the same flush.
        return (await asyncio.shield(flush)).name

    async def drain(self, timeout_s: float) -> bool:
        """Wait until every write to L3 is done, or `timeout_s`. Returns whether they all are."""
        core, deadline_s = self._running_core(), time.monotonic() + timeout_s
        while not core.is_drained and time.monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        return core.is_drained

    def check(self) -> None:
        """Raise AccountingError if an invariant of the core does not hold."""
        self._running_core().check()

    async def stop(self) -> None:
        """Close the links and the arena."""
        if self._exporter is not None:
            await self._exporter.stop()
        await self._storage_log.stop()
        self._turns.stop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
        if self._pulls is not None:
            await self._pulls.close()
        if self.arena is not None:
            self.arena.close()

    def _hello(self) -> Hello:
        return Hello(
            role=Role.HOST_MEMORY,
            name=self._name,
            incarnation=self._incarnation,
            pid=os.getpid(),
        )

    async def _dial(self, name: SchedulerName, address: str, secret: bytes) -> None:
        """Connect to a Scheduler, again and again, and pass on what it says."""
        while True:
            try:
                link = await connect(address, self._hello(), secret)
            except LinkRefused:
                await asyncio.sleep(_RETRY_S)
                continue
            except LinkClosed:
                continue

            connection = self._links.open(link)
            self._turns.post(SchedulerAttached(connection, name))
            logger.info("linked to the Scheduler of %s", link.hello.name)
            try:
                while isinstance(message := await link.receive(), ToHost):
                    self._turns.post(FromScheduler(connection, message))
            except LinkClosed as closed:
                logger.info("the link to the Scheduler is lost (%s) and dialled again", closed)
            finally:
                self._links.close(connection)
            self._turns.post(SchedulerLost(connection))

    async def _serve_storage(self, link: Link) -> None:
        if link.hello.role is not Role.STORAGE:
            link.close()
            return

        # A new storage actor takes the place of one that has not been missed yet.
        self._close_storage()
        connection = self._storage = self._links.open(link)
        self._turns.post(StorageAttached(connection, link.hello.pid, link.hello.patience_s))
        self._storage_attached.set()

        try:
            while True:
                message = await link.receive()
                if not isinstance(message, ObjectsDone):
                    break
                self._turns.post(FromStorage(connection, message))
        except LinkClosed:
            pass

        if self._storage == connection:
            self._close_storage()
            self._turns.post(StorageLost(connection))

    def _close_storage(self) -> None:
        if self._storage is not None:
            self._links.close(self._storage)
        self._storage = None
        self._storage_attached.clear()

    async def _watch(self, pid: int) -> None:
        await wait_for_exit(pid)
        self._watched.discard(pid)
        self._turns.post(ProcessExited(pid))

    def _carry_out(self, effect: HostEffect) -> None:
        match effect:
            case SetGenerations():
                assert self.arena is not None, "the core exists only with an arena"
                self.arena.set_generations(effect.host_page_ids, effect.generations)
            case ToScheduler() | ToStorage() | ToReader():
                self._links.send(effect.connection, effect.message)
            case AskForKeys():
                self._links.send(effect.connection, TellKeys())
            case SendPages():
                assert self._pulls is not None, "nobody pulls otherwise"
                self._pulls.send(effect)
            case WatchProcess():
                if effect.pid not in self._watched:
                    self._watched.add(effect.pid)
                    self._add_task(self._watch(effect.pid))

            case HostFlushed():
                self._flushes.end_host(effect.num_pages)
            case StorageFlushed():
                self._flushes.end_storage(effect.status)
            case StorageRetired():
                self._storage_retired.set()
            case _:
                assert_never(effect)

    def _add_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _running_core(self) -> HostMemoryCore:
        if self._core is None:
            raise AccountingError("HostMemory is asked for something before its start")
        return self._core
