"""The GPU actors of an engine, lane by lane: what they report, and how they die."""

from collections.abc import Callable
from functools import partial

from raydix.runtime.foresight.simulator.arena import SimulatedArena
from raydix.runtime.foresight.simulator.device import Copied, Done, LaneDevice
from raydix.runtime.foresight.simulator.engine import SimulatedScheduler
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.plan import StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan
from raydix.runtime.scheduler.settings import SchedulerSettings


class SimulatedLane:
    """Owns: the processes of a lane's ranks, which live and die together, and their links."""

    def __init__(
        self,
        world: World,
        lane: int,
        settings: SchedulerSettings,
        scheduler: SimulatedScheduler,
        arena: SimulatedArena | None,
    ) -> None:
        self._world, self._settings = world, settings
        self._scheduler, self._arena = scheduler, arena
        self._first = lane * settings.ranks_per_lane
        self._incarnation = 0
        self._links: dict[int, Link] = {}
        self._pids: dict[int, int] = {}
        self._is_alive = False
        self._device = self._new_device()
        self._standing = StandingPlan(self._first)
        self._num_plans = 0
        """The plans that have come: one that stands is repeated until the next one does."""
        self.start()

    def _new_device(self) -> LaneDevice:
        settings = self._settings
        num_layers = sum(len(group.layers) for group in settings.layout.groups)
        return LaneDevice(
            self._world, self._first, settings.loaded_bytes, num_layers, settings.vocab_size
        )

    @property
    def _ranks(self) -> range:
        return range(self._first, self._first + self._settings.ranks_per_lane)

    def start(self) -> None:
        """New processes, with empty L1."""
        if self._is_alive:
            return
        self._is_alive = True
        self._incarnation += 1
        self._device = self._new_device()
        self._standing = StandingPlan(self._first)
        for rank in self._ranks:
            self._pids[rank] = self._world.processes.start()
            self._dial(rank, self._incarnation)

    def kill(self) -> None:
        """SIGKILL to all ranks of the lane; nobody starts them anew."""
        if not self._is_alive:
            return
        self._is_alive = False
        for rank in self._ranks:
            self._world.processes.end(self._pids[rank], 0.0)
            if (link := self._links.pop(rank, None)) is not None:
                link.close()

    def kill_condemned(self, order: events.KillRank) -> bool:
        """Kill the lane if the Scheduler means one of these processes."""
        is_meant = order.rank in self._ranks and order.incarnation == self._incarnation
        if is_meant and self._is_alive:
            self.kill()
            return True
        return False

    def _dial(self, rank: int, incarnation: int) -> None:
        def is_wanted() -> bool:
            return self._is_alive and self._incarnation == incarnation

        self._scheduler.connect(partial(self._use, rank), is_wanted)

    def _use(self, rank: int, link: Link) -> None:
        self._links[rank] = link
        link.listen(End.DIALLER, partial(self._hear, rank, link), partial(self._lose, rank, link))
        pid, incarnation = self._pids[rank], self._incarnation
        link.carry(
            End.ACCEPTOR,
            lambda: self._scheduler.accept_rank(link, rank, incarnation, pid),
        )

    def _lose(self, rank: int, link: Link) -> None:
        """The link is gone while the process lives: it says hello anew once it is idle."""
        if self._links.get(rank) is not link:
            return
        del self._links[rank]
        self._device.forget()
        self._standing.forget()
        idle_s = max(0.0, self._device.free_s - self._world.now_s)
        self._world.after(idle_s, partial(self._dial, rank, self._incarnation))

    def _hear(self, rank: int, link: Link, plan: StepPlan) -> None:
        """All ranks of a lane get each plan; the first one's time is that of all."""
        if rank != self._first:
            return
        self._num_plans += 1
        taken = self._standing.take(plan)
        if taken.left_out is not None:
            # Told behind the step that is under way.
            left_out, ends_s = taken.left_out, self._device.step_ends_s
            self._world.clock.at(ends_s, lambda: link.send(End.ACCEPTOR, left_out))
        self._carry_out(taken.plan)

    def _carry_out(self, plan: StepPlan) -> None:
        links = dict(self._links)
        for time_s, done in self._device.carry_out(plan):
            self._world.clock.at(time_s, self._report(links, done))
        if self._standing.may_repeat:
            repeat = partial(self._repeat, links[self._first], self._num_plans)
            self._world.clock.at(self._device.step_ends_s, repeat)

    def _repeat(self, link: Link, num_plans: int) -> None:
        """A step of a plan that stands has ended: it is carried out once more."""
        if link.is_open and self._num_plans == num_plans and self._standing.may_repeat:
            self._carry_out(self._standing.repeat())

    def _report(self, links: dict[int, Link], done: Done) -> Callable[[], None]:
        def report() -> None:
            if not links[self._first].is_open:
                return
            message = self._message(done)
            for rank, link in links.items():
                link.send(End.ACCEPTOR, message if rank == self._first else _of(message, rank))

        return report

    def _message(self, done: Done) -> StepResult | TransfersDone:
        if not isinstance(done, Copied):
            return done
        assert self._arena is not None, "without L2 nothing is copied"
        return self._device.ended(done, self._arena)


def _of(message: StepResult | TransfersDone, rank: int) -> StepResult | TransfersDone:
    """The same from another rank; only the first one of a lane tells tokens."""
    if isinstance(message, StepResult):
        return StepResult(rank=rank, step=message.step, compute_s=message.compute_s)
    return TransfersDone(
        rank=rank,
        transfer_ids=message.transfer_ids,
        stale_transfer_ids=message.stale_transfer_ids,
        num_bytes=message.num_bytes,
        seconds=message.seconds,
    )
