"""A node of the simulation: its engines, HostMemory and storage actor, and how they die."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.host import SimulatedHost
from raydix.runtime.foresight.simulator.pulls import PullPlace, Pulls
from raydix.runtime.foresight.simulator.storage import NodeStorage, SharedStore
from raydix.runtime.foresight.simulator.whole_engine import SimulatedEngine
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What each node has."""

    scheduler: SchedulerSettings
    """Every engine has these, but for its role."""
    host: HostSettings | None
    """None without L2."""
    arena_bytes: int = 0
    with_pulls: bool = False
    """Whether nodes pull pages from each other's L2."""
    roles: tuple[EngineRole, ...] = (EngineRole.BOTH,)
    """The roles of its engines, which share its L2."""


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
        self.engines = [self._new_engine(number) for number in range(len(settings.roles))]
        self._host, self._arena = self._new_host()
        for engine in self.engines:
            engine.start_ranks(self._arena)
        if self._host is not None:
            self._host.start(is_first=True)

    @property
    def pulls(self) -> Pulls | None:
        """Who answers those that pull from this node."""
        return None if self._host is None else self._host.pulls

    @property
    def num_events(self) -> int:
        """The number of events that the cores of this node have taken."""
        num_events = sum(engine.scheduler.num_events for engine in self.engines)
        return num_events + (0 if self._host is None else self._host.num_events)

    def _new_engine(self, number: int) -> SimulatedEngine:
        roles = self._settings.roles
        name = self.name if len(roles) == 1 else f"{self.name} engine {number}"
        settings = replace(self._settings.scheduler, role=roles[number])
        return SimulatedEngine(self._world, name, settings)

    def _new_host(self) -> tuple[SimulatedHost | None, SimulatedArena | None]:
        settings = self._settings
        if settings.host is None:
            return None, None
        geometry = plan_arena(settings.scheduler.layout, settings.arena_bytes)
        arena = SimulatedArena(geometry)
        storage = None if self._store is None else NodeStorage(self._world, self._store)
        host = SimulatedHost(
            self._world,
            self.name,
            arena,
            settings.host,
            self.engines,
            storage=storage,
            make_pulls=self._make_pulls if settings.with_pulls else None,
        )
        return host, arena

    def _make_pulls(self, post: Callable[[host_events.HostEvent], None]) -> Pulls:
        layout = self._settings.scheduler.layout
        page_bytes = tuple(layout.payload_bytes(group) for group in range(len(layout.groups)))
        return Pulls(self._world, self._others, page_bytes, post)

    def _after(self, mean_s: float, action: Callable[[], None]) -> None:
        self._world.after(self._world.draw_restart_s(mean_s), action)

    def kill_rank(self) -> None:
        """SIGKILL to a GPU actor of one of the engines."""
        self._world.random.choice(self.engines).kill_rank()

    def kill_host(self) -> None:
        """SIGKILL to HostMemory; its arena stays."""
        if (host := self._host) is None or host.core is None:
            return
        host.kill()
        self._after(self._world.profile.restart.host_s, partial(self._restart_host, host))

    def _restart_host(self, host: SimulatedHost) -> None:
        if host is self._host:
            host.start(is_first=False)

    def kill_engine(self) -> None:
        """SIGKILL to the Scheduler and all ranks of an engine; HostMemory lives on."""
        up = [engine for engine in self.engines if engine.is_up]
        if up:
            self._end(self._world.random.choice(up))

    def kill_node(self) -> None:
        """All processes end, and the arena is gone."""
        for engine in self.engines:
            if engine.is_up:
                self._end(engine)
        if self._host is not None:
            self._host.kill()
        self._host = self._arena = None

    def _end(self, engine: SimulatedEngine) -> None:
        engine.end()
        self._after(self._world.profile.restart.engine_s, partial(self._restart, engine))

    def _restart(self, engine: SimulatedEngine) -> None:
        """The engine comes back, on the HostMemory that there was, if it is still there."""
        ended = engine.scheduler_name
        engine.start_anew()
        host = self._host
        if host is not None:
            host.change_scheduler(ended, engine.scheduler_name)
        else:
            self._host, self._arena = self._new_host()
        engine.start_ranks(self._arena)
        if host is None and self._host is not None:
            self._host.start(is_first=True)

    def check(self) -> None:
        """Raise AccountingError unless the invariants of all cores hold."""
        for engine in self.engines:
            if engine.scheduler.core is not None:
                engine.scheduler.core.check()
        if self._host is not None and self._host.core is not None:
            self._host.core.check()
