"""A node of the simulation: its engine, HostMemory and storage actor, and how they die."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from raydix.ids import SchedulerName
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.engine import SimulatedScheduler
from raydix.runtime.foresight.simulator.host import SimulatedHost
from raydix.runtime.foresight.simulator.lanes import SimulatedLane
from raydix.runtime.foresight.simulator.pulls import PullPlace, Pulls
from raydix.runtime.foresight.simulator.storage import NodeStorage, SharedStore
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What each node has."""

    scheduler: SchedulerSettings
    host: HostSettings | None
    """None without L2."""
    arena_bytes: int = 0
    with_pulls: bool = False
    """Whether nodes pull pages from each other's L2."""


class SimulatedNode:
    """Owns: the processes of one node, and the table of its arena."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: NodeSettings,
        *,
        store: SharedStore | None,
        others: Callable[[], Sequence[PullPlace]],
    ) -> None:
        """`store`: L3, if there is one. `others`: the nodes that pages are pulled from."""
        self.name = name
        self._world, self._settings = world, settings
        self._others = others
        self._store = store
        self._num_engines = 1
        self.scheduler = SimulatedScheduler(world, settings.scheduler, self._kill_condemned)
        self._host, self._arena = self._new_host()
        self._lanes = self._new_lanes()
        if self._host is not None:
            self._host.start(self._engine, is_first=True)

    @property
    def _engine(self) -> SchedulerName:
        """The name of the engine's Scheduler; an engine that has ended never comes back."""
        return SchedulerName(f"{self.name} engine {self._num_engines}")

    @property
    def pulls(self) -> Pulls | None:
        """Who answers those that pull from this node."""
        return None if self._host is None else self._host.pulls

    @property
    def num_events(self) -> int:
        """The number of events that the cores of this node have taken."""
        return self.scheduler.num_events + (0 if self._host is None else self._host.num_events)

    def _new_host(self) -> tuple[SimulatedHost | None, SimulatedArena | None]:
        settings = self._settings
        if settings.host is None:
            return None, None
        geometry = plan_arena(settings.scheduler.layout, settings.arena_bytes)
        arena = SimulatedArena(geometry)
        storage = None if self._store is None else NodeStorage(self._world, self._store)
        host = SimulatedHost(
            self._world,
            arena,
            settings.host,
            self.scheduler,
            storage,
            self._make_pulls if settings.with_pulls else None,
        )
        return host, arena

    def _make_pulls(self, post: Callable[[host_events.HostEvent], None]) -> Pulls:
        layout = self._settings.scheduler.layout
        page_bytes = tuple(layout.payload_bytes(group) for group in range(len(layout.groups)))
        return Pulls(self._world, self._others, page_bytes, post)

    def _new_lanes(self) -> list[SimulatedLane]:
        settings = self._settings.scheduler
        return [
            SimulatedLane(self._world, lane, settings, self.scheduler, self._arena)
            for lane in range(settings.num_lanes)
        ]

    def _after(self, mean_s: float, action: Callable[[], None]) -> None:
        self._world.after(self._world.draw_restart_s(mean_s), action)

    def _kill_condemned(self, order: events.KillRank) -> None:
        for lane in self._lanes:
            if lane.kill_condemned(order):
                restart = partial(self._restart_lane, lane)
                self._after(self._world.profile.restart.rank_s, restart)

    def kill_rank(self) -> None:
        """SIGKILL to a GPU actor, and with it to the others of its lane."""
        if not self._lanes:
            return
        lane = self._world.random.choice(self._lanes)
        lane.kill()
        self._after(self._world.profile.restart.rank_s, partial(self._restart_lane, lane))

    def _restart_lane(self, lane: SimulatedLane) -> None:
        # An engine that has ended meanwhile brings its own.
        if lane in self._lanes:
            lane.start()

    def kill_host(self) -> None:
        """SIGKILL to HostMemory; its arena stays."""
        if (host := self._host) is None or host.core is None:
            return
        host.kill()
        self._after(self._world.profile.restart.host_s, partial(self._restart_host, host))

    def _restart_host(self, host: SimulatedHost) -> None:
        if host is self._host:
            host.start(self._engine, is_first=False)

    def kill_engine(self) -> None:
        """SIGKILL to the Scheduler and all ranks; HostMemory lives on."""
        if self.scheduler.core is None:
            return
        self._end_engine()
        self._after(self._world.profile.restart.engine_s, partial(self._restart, self._host))

    def kill_node(self) -> None:
        """All processes end, and the arena is gone."""
        if self.scheduler.core is None:
            return
        self._end_engine()
        if self._host is not None:
            self._host.kill()
        self._host = self._arena = None
        self._after(self._world.profile.restart.engine_s, partial(self._restart, None))

    def _end_engine(self) -> None:
        self.scheduler.kill()
        for lane in self._lanes:
            lane.kill()
        self._lanes = []

    def _restart(self, host: SimulatedHost | None) -> None:
        """Another engine, on the HostMemory that there was, if it is still there."""
        ended = self._engine
        self._num_engines += 1
        is_new = host is None or host is not self._host
        if is_new:
            self._host, self._arena = self._new_host()
        elif host is not None:
            host.change_scheduler(ended, self._engine)
        self.scheduler.start()
        self._lanes = self._new_lanes()
        if is_new and self._host is not None:
            self._host.start(self._engine, is_first=True)

    def check(self) -> None:
        """Raise AccountingError unless the invariants of all cores hold."""
        if self.scheduler.core is not None:
            self.scheduler.core.check()
        if self._host is not None and self._host.core is not None:
            self._host.core.check()
