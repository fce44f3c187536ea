"""An engine of the simulation: its Scheduler and its GPU actors, and how they die."""

from collections.abc import Callable
from functools import partial

from raydix.ids import SchedulerName
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.engine import SimulatedScheduler
from raydix.runtime.foresight.simulator.lanes import SimulatedLane
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import SchedulerSettings


class SimulatedEngine:
    """Owns: the processes of one engine, and how often it was started."""

    def __init__(self, world: World, name: str, settings: SchedulerSettings) -> None:
        """Start its Scheduler; its ranks come with `start_ranks`."""
        self.name = name
        self._world, self._settings = world, settings
        self._num_lives = 1
        self._lanes: list[SimulatedLane] = []
        self.scheduler = SimulatedScheduler(world, settings, self._kill_condemned)

    @property
    def scheduler_name(self) -> SchedulerName:
        """The name of its Scheduler; one that has ended never comes back."""
        return SchedulerName(f"{self.name} engine {self._num_lives}")

    @property
    def role(self) -> EngineRole:
        """What it is for, as it tells clients."""
        return self._settings.role

    @property
    def is_up(self) -> bool:
        """Whether its Scheduler lives."""
        return self.scheduler.core is not None

    def start_ranks(self, arena: SimulatedArena | None) -> None:
        """New GPU actors, which copy from and to this arena."""
        settings = self._settings
        self._lanes = [
            SimulatedLane(self._world, lane, settings, self.scheduler, arena)
            for lane in range(settings.num_lanes)
        ]

    def start_anew(self) -> None:
        """Another Scheduler takes the place of the one that has ended."""
        self._num_lives += 1
        self.scheduler.start()

    def end(self) -> None:
        """SIGKILL to the Scheduler and all ranks."""
        self.scheduler.kill()
        for lane in self._lanes:
            lane.kill()
        self._lanes = []

    def kill_rank(self) -> None:
        """SIGKILL to a GPU actor, and with it to the others of its lane."""
        if not self._lanes:
            return
        lane = self._world.random.choice(self._lanes)
        lane.kill()
        self._after_restart(partial(self._restart, lane))

    def _kill_condemned(self, order: events.KillRank) -> None:
        for lane in self._lanes:
            if lane.kill_condemned(order):
                self._after_restart(partial(self._restart, lane))

    def _after_restart(self, action: Callable[[], None]) -> None:
        world = self._world
        world.after(world.draw_restart_s(world.profile.restart.rank_s), action)

    def _restart(self, lane: SimulatedLane) -> None:
        # An engine that has ended meanwhile brings its own.
        if lane in self._lanes:
            lane.start()
