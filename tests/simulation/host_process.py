"""HostMemory as a process: the real core on the node's arena, its links, its death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

from raydix.ids import L2_SOURCE, ConnectionId
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.cache.host.window_ends import make_rule
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, split_keys
from raydix.runtime.foresight.simulator.links import End, Link, Turns
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ToHost
from raydix.runtime.messages.mirror import MirrorUpdate
from tests.simulation.hints import check_pins
from tests.simulation.pulls import Pulls
from tests.simulation.reuse_watch import ReuseWatch
from tests.simulation.touch_order import TouchOrderWatch

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node

_LOOK_AGAIN_S = 0.01


class HostProcess:
    """Owns: HostMemory's core while its process lives, and its ends of links."""

    def __init__(self, node: Node) -> None:
        self._node, self._world = node, node.world
        self.core: HostMemoryCore | None = None
        self.lost_counters: Counter[str] = Counter()
        """The counters of the cores that were killed."""
        self.published: set[tuple[int, bytes]] = set()
        """Group and short key of each page of which it has told that it is READY."""
        self._links: dict[ConnectionId, Link] = {}
        self._schedulers: dict[Cluster, Link] = {}
        """The latest link to the Scheduler of each engine."""
        self._storage: Link | None = None
        self._start(is_first=True)

    def _start(self, *, is_first: bool) -> None:
        """A new process, on a new arena or on the one that its predecessor left."""
        node, world = self._node, self._world
        self.core = HostMemoryCore(
            node.geometry,
            HostSettings(
                page_size=node.settings.page_size,
                eviction=node.l2_eviction,
                rule=make_rule(node.settings.layout),
                storage=node.storage_settings or StorageSettings(),
                has_storage=node.storage is not None and node.storage.is_in_use,
            ),
            None
            if is_first
            else FormerArena(int32_array(node.generations), tuple(node.arena_users)),
        )
        self._watch = TouchOrderWatch()
        self._reuse = ReuseWatch(self.core._index) if self.core._index._reuse else None
        self._num_slabs_taken = 0
        self._turns = Turns(
            world.clock,
            world.draw_turn_s,
            world.draw_size,
            self._take,
            self.core.next_deadline_s,
            host_events.Tick(),
        )
        self.pulls = Pulls(self, node)
        for engine in node.engines:
            self._dial_scheduler(engine, self.core)
        self.pulls.start()

    def follow(self, engine: Cluster) -> None:
        """Stay connected to whichever Scheduler serves this engine."""
        self._dial_scheduler(engine, self.core)

    def kill(self) -> None:
        """SIGKILL: the index is lost, the arena stays; all copies end before the next process."""
        if self.core is None:
            return
        self._world.num_faults["HostMemory killed"] += 1
        self.lost_counters.update(self.core.counters)
        self.core = None
        self._turns.stop()
        self.pulls.stop()
        for link in (*self._schedulers.values(), self._storage):
            if link is not None:
                link.close()
        self._storage = None
        self._schedulers.clear()
        self._links.clear()
        self._world.after(self._world.clock.draw(0.2), self._restart)

    def _restart(self) -> None:
        storage = self._node.storage
        is_copying = storage is not None and storage.is_busy
        if is_copying or self._world.processes.is_any_lingering:
            self._world.after(_LOOK_AGAIN_S, self._restart)
        else:
            self._start(is_first=False)

    def pause(self, duration_s: float) -> None:
        """SIGSTOP, then SIGCONT: what Schedulers send is heard late."""
        if self._schedulers:
            self._world.num_faults["HostMemory silent"] += 1
            for link in self._schedulers.values():
                link.hold_up(End.DIALLER, self._world.now_s + duration_s)

    def flap(self, engine: Cluster) -> None:
        """The link to an engine's Scheduler breaks while both live."""
        link = self._schedulers.get(engine)
        if link is not None and link.is_open:
            self._world.num_faults["HostMemory link broken"] += 1
            link.close()

    def post(self, event: host_events.HostEvent) -> None:
        """An event waits for the next turn of this life."""
        self._turns.post(event)

    def take_now(self, event: host_events.HostEvent) -> None:
        """A control call: the core, if there is one, takes this event at once."""
        self._turns.take_now(event)

    def _dial_scheduler(self, engine: Cluster, core: HostMemoryCore | None) -> None:
        """Connect for this life of the process, which may be over when the Scheduler is there."""
        use = partial(self._use_scheduler, engine)
        engine.scheduler.connect(use, lambda: self.core is core is not None and not engine.is_ended)

    def _use_scheduler(self, engine: Cluster, link: Link) -> None:
        self._schedulers[engine] = self._links[link.number] = link
        hear, lose = self._hear_scheduler, self._lose_scheduler
        link.listen(End.DIALLER, partial(hear, link), partial(lose, engine, link))
        link.carry(End.ACCEPTOR, partial(engine.scheduler.accept_host, link))
        self._turns.post(host_events.SchedulerAttached(link.number, engine.name))

    def _hear_scheduler(self, link: Link, message: ToHost) -> None:
        self._turns.post(host_events.FromScheduler(link.number, message))

    def _lose_scheduler(self, engine: Cluster, link: Link) -> None:
        if self._links.pop(link.number, None) is link:
            # It may hear of the next link first: an earlier one counts as lost all the same.
            if self._world.random.random() < 0.8:
                self._turns.post(host_events.SchedulerLost(link.number))
            redial = partial(self._dial_scheduler, engine, self.core)
            self._world.after(self._world.draw_redial_s(), redial)

    def accept_storage(self, link: Link, pid: int) -> None:
        """A storage actor says hello: none of its batches is in flight."""
        if self._storage is not None:
            self._storage.close()
        self._storage = self._links[link.number] = link
        link.listen(
            End.ACCEPTOR, partial(self._hear_storage, link), partial(self._lose_storage, link)
        )
        self._turns.post(host_events.StorageAttached(link.number, pid))

    def _hear_storage(self, link: Link, message: ObjectsDone) -> None:
        self._turns.post(host_events.FromStorage(link.number, message))

    def _lose_storage(self, link: Link) -> None:
        if self._links.pop(link.number, None) is link:
            self._turns.post(host_events.StorageLost(link.number))

    def link_of(self, connection: ConnectionId) -> Link | None:
        """The link that an effect names, if it is still there."""
        return self._links.get(connection)

    def _take(self, heard: Sequence[host_events.HostEvent]) -> None:
        assert self.core is not None
        effects = [effect for event in heard for effect in self._hear(self.core, event)]
        for effect in effects:
            self._carry_out(effect)
        if self._world.is_check_due(len(heard)):
            self.core.check()
            check_pins(self.core)
            if self._reuse is not None:
                self._reuse.check()

    def _hear(
        self, core: HostMemoryCore, event: host_events.HostEvent
    ) -> list[host_events.HostEffect]:
        """Let the core hear an event, and the watch what it says, which is carried out later."""
        self._watch.hears(event)
        core.hear(event, self._world.now_s)
        num_slabs_taken = core._index.num_slabs_taken
        if num_slabs_taken != self._num_slabs_taken:
            self._watch.sees_slab_change_hands()
        self._num_slabs_taken = num_slabs_taken
        effects = core.decide(self._world.now_s)
        for effect in effects:
            self._watch.says(effect)
        return effects

    def _carry_out(self, effect: host_events.HostEffect) -> None:
        match effect:
            case host_events.SetGenerations():
                self._node.generations[effect.host_page_ids] = effect.generations
            case host_events.ToScheduler(connection, message):
                if isinstance(message, MirrorUpdate) and message.source == L2_SOURCE:
                    keys = split_keys(message.ready, MIRROR_KEY_BYTES)
                    self.published.update((message.group, key) for key in keys)
                self._send(connection, End.ACCEPTOR, message)
            case host_events.ToStorage(connection, message):
                if not self.pulls.order(connection, message):
                    self._send(connection, End.DIALLER, message)
            case host_events.ToReader():
                self.pulls.tell(effect)
            case host_events.SendPages():
                self.pulls.send(effect)
            case host_events.AskForKeys(connection):
                self.pulls.ask_for_keys(connection)
            case host_events.WatchProcess(pid):
                turns = self._turns
                self._world.processes.watch(pid, lambda: turns.post(host_events.ProcessExited(pid)))
            case (
                host_events.HostFlushed()
                | host_events.StorageFlushed()
                | host_events.StorageRetired()
            ):
                pass
            case _:
                assert_never(effect)

    def _send(self, connection: ConnectionId, to: End, message: object) -> None:
        link = self.link_of(connection)
        if link is not None:
            link.send(to, message)
