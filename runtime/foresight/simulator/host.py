"""HostMemory as a process of the simulation: the real core on a node's arena, and its death."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from raydix.ids import ConnectionId, SchedulerName
from raydix.runtime.cache.host import events
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.links import End, Link, Turns
from raydix.runtime.foresight.simulator.pulls import Pulls
from raydix.runtime.foresight.simulator.storage import NodeStorage
from raydix.runtime.foresight.simulator.whole_engine import SimulatedEngine
from raydix.runtime.foresight.simulator.world import CheckTurns, World


class SimulatedHost:
    """Owns: HostMemory's core while its process lives, and its ends of links."""

    def __init__(
        self,
        world: World,
        name: str,
        arena: SimulatedArena,
        settings: HostSettings,
        engines: Sequence[SimulatedEngine],
        *,
        storage: NodeStorage | None,
        make_pulls: Callable[[Callable[[events.HostEvent], None]], Pulls] | None,
    ) -> None:
        """`name` tells its L2 from others; `engines` are those that have their pages in it.

        make_pulls: None where nodes do not pull from each other.
        """
        self._world, self._name, self._arena = world, name, arena
        self._settings = replace(settings, has_storage=storage is not None)
        self._engines, self._storage = engines, storage
        self._make_pulls = make_pulls
        self._checks = CheckTurns(world.rules)
        self._links: dict[ConnectionId, Link] = {}
        self._names: list[SchedulerName] = []
        """The Schedulers that may have copies in flight."""
        self.core: HostMemoryCore | None = None
        self.pulls: Pulls | None = None
        self.num_events = 0

    def start(self, *, is_first: bool) -> None:
        """A new process, on a new arena or on the one that its predecessor left."""
        if self.core is not None:
            return
        former = None
        if not is_first:
            former = FormerArena(self._arena.generations, tuple(self._names))
        for engine in self._engines:
            if engine.is_up and engine.scheduler_name not in self._names:
                self._names.append(engine.scheduler_name)
        core = self.core = HostMemoryCore(self._arena.geometry, self._settings, former)
        self._turns = Turns(
            self._world.clock,
            self._world.draw_turn_s,
            self._world.draw_size,
            partial(self._take, core),
            core.next_deadline_s,
            events.Tick(),
        )
        if self._storage is not None:
            number = self._storage.attach(self._turns.post)
            self._turns.post(events.StorageAttached(number, self._storage.pid))
        for engine in self._engines:
            self._dial(engine, core)
        if self._make_pulls is not None:
            self.pulls = self._make_pulls(self._turns.post)
            self.pulls.start()

    def kill(self) -> None:
        """SIGKILL: the index is lost, the arena stays."""
        if self.core is None:
            return
        self.core = None
        self._turns.stop()
        if self._storage is not None:
            self._storage.detach()
        if self.pulls is not None:
            self.pulls.stop()
            self.pulls = None
        for link in self._links.values():
            link.close()
        self._links.clear()

    def change_scheduler(self, ended: SchedulerName, name: SchedulerName) -> None:
        """An engine of the node has ended for good, and another one is in its place."""
        self._names = [each for each in self._names if each != ended]
        self._names.append(name)
        if self.core is not None:
            self._turns.post(events.SchedulerEnded(ended))

    def _dial(self, engine: SimulatedEngine, core: HostMemoryCore) -> None:
        engine.scheduler.connect(partial(self._use, engine), lambda: self.core is core)

    def _use(self, engine: SimulatedEngine, link: Link) -> None:
        self._links[link.number] = link
        link.listen(End.DIALLER, partial(self._hear, link), partial(self._lose, engine, link))
        link.carry(End.ACCEPTOR, partial(engine.scheduler.accept_host, link, self._name))
        self._turns.post(events.SchedulerAttached(link.number, engine.scheduler_name))

    def _hear(self, link: Link, message: Any) -> None:
        self._turns.post(events.FromScheduler(link.number, message))

    def _lose(self, engine: SimulatedEngine, link: Link) -> None:
        if self._links.pop(link.number, None) is link and self.core is not None:
            self._turns.post(events.SchedulerLost(link.number))
            self._dial(engine, self.core)

    def _take(self, core: HostMemoryCore, heard: Sequence[events.HostEvent]) -> None:
        self.num_events += len(heard)
        for event in heard:
            core.hear(event, self._world.now_s)
        for effect in core.decide(self._world.now_s):
            self._carry_out(effect)
        if self._checks.is_due(len(heard)):
            core.check()

    def _carry_out(self, effect: events.HostEffect) -> None:
        match effect:
            case events.SetGenerations():
                self._arena.set_generations(effect.host_page_ids, effect.generations)
            case events.ToScheduler(connection, message):
                if (link := self._links.get(connection)) is not None:
                    link.send(End.ACCEPTOR, message)
            case events.ToStorage(connection, message):
                is_pulled = self.pulls is not None and self.pulls.order(connection, message)
                if not is_pulled and self._storage is not None:
                    self._storage.order(connection, message)
            case events.ToReader():
                assert self.pulls is not None
                self.pulls.tell(effect)
            case events.SendPages():
                assert self.pulls is not None
                self.pulls.send(effect)
            case events.AskForKeys(connection):
                assert self.pulls is not None
                self.pulls.ask_for_keys(connection)
            case events.WatchProcess(pid):
                post = self._turns.post
                self._world.processes.watch(pid, lambda: post(events.ProcessExited(pid)))
            case events.HostFlushed() | events.StorageFlushed() | events.StorageRetired():
                pass
            case _:
                assert_never(effect)
