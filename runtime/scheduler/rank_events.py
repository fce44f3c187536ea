"""How the Scheduler lives with GPU actors: their hellos, reports, silence and end."""

from collections.abc import Sequence
from typing import assert_never

from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import StepResult, StepsLeftOut, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.events import KillCause, KillRank
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.queue.waiting import Place
from raydix.runtime.scheduler.ranks.expert_events import on_expert_step
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import AttachedRank, StepGroup
from raydix.runtime.scheduler.request.request import MAX_LOSSES, RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sleep import Sleep
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.step_results import StepResults
from raydix.runtime.scheduler.steps.transfer_results import TransferResults


class RankEvents:
    """Takes in what GPU actors say, their silence and their end."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        lanes: Sequence[Lane],
        step_groups: Sequence[StepGroup],
        source: KvSource,
        steps: StepResults,
        transfers: TransferResults,
        life: Transitions,
        endings: Endings,
        sleep: Sleep,
        outbox: Outbox,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._step_groups = step_groups
        self._source = source
        self._steps = steps
        self._transfers = transfers
        self._life = life
        self._endings = endings
        self._sleep = sleep
        self._outbox = outbox
        self._counters = counters

    def _step_group_of(self, rank: int) -> StepGroup:
        """The step group that a rank is in."""
        return self._step_groups[rank // self._settings.ranks_per_group]

    def attach(self, event: events.RankAttached) -> None:
        """Take in a GPU actor that says hello."""
        step_group = self._step_group_of(event.rank)
        if event.rank in step_group.attached:
            self._lose_rank(event.rank)
        if not self._admit_to_step_group(step_group, event):
            return
        attached = AttachedRank(
            connection=event.connection, incarnation=event.incarnation, pid=event.pid
        )
        step_group.attach(event.rank, attached)
        # A process says hello only when its copies have ended, so HostMemory may free what it kept
        # for it: the process itself lives on, and its exit would never tell.
        self._source.tell(ProcessDrained(pid=event.pid))
        if step_group.is_attached:
            self._displace_others()

    def _displace_others(self) -> None:
        """Let whoever waits on a lane without ranks be served elsewhere."""
        for lane in self._lanes:
            if not lane.is_attached:
                self._life.displace(lane.start_over())

    def _admit_to_step_group(self, step_group: StepGroup, event: events.RankAttached) -> bool:
        """Let a rank step with its step group, which loses an older incarnation of its ranks.

        Ranks of a group are restarted together, so all that step together are of one incarnation.
        False: they have a newer one than this rank, which is ended.
        """
        if len(step_group.ranks) == 1:
            return True
        for rank, attached in list(step_group.attached.items()):
            if attached.incarnation < event.incarnation:
                # The end of that incarnation went unnoticed, perhaps while the Scheduler was down.
                self._lose_rank(rank)
                break

        if event.incarnation < step_group.min_incarnation():
            self._end_rank(event.rank, event.incarnation, "its step group has a newer incarnation")
            return False
        return True

    def _is_current(self, event: events.RankMessage | events.RankLost) -> bool:
        """Whether the event belongs to the link by which its rank is attached."""
        attached = self._step_group_of(event.rank).attached.get(event.rank)
        return attached is not None and attached.connection == event.connection

    def take(self, event: events.RankMessage, now_s: float) -> None:
        """Take a report of a GPU actor."""
        if not self._is_current(event):
            return
        lane = self._lanes[event.rank // self._settings.ranks_per_lane]
        match event.message:
            case StepResult():
                self._steps.take(lane, event.message, now_s)
                wanted = on_expert_step(self._step_group_of(event.rank), event.message)
                if wanted is not None:
                    self._outbox.emit(wanted)
            case StepsLeftOut():
                self._steps.leave_out(lane, event.message, now_s)
            case TransfersDone():
                self._transfers.take(lane, event.message, now_s)
            case _:
                assert_never(event.message)

    def lose(self, event: events.RankLost) -> None:
        """Note that a GPU actor's link has closed."""
        if self._is_current(event):
            self._lose_rank(event.rank)

    def _lose_rank(self, rank: int) -> None:
        """Forget a rank that is gone, and with it L1 of each lane that steps with it.

        The requests of these lanes wait again, with their tokens.
        """
        step_group = self._step_group_of(rank)
        lanes = step_group.pick(self._lanes)
        if not self._sleep.ranks_may_leave:
            self._counters.count(Count.LOST_RANKS)
        # First of all: what is in flight, and in which processes, is forgotten below.
        for lane in lanes:
            self._source.abandon(lane.in_flight.transfers.values(), lane.pids)
            for load in lane.in_flight.take_ready_loads():
                # Its lease came with the events that are heard now: no rank was told of it.
                self._source.release_lease(load.lease_id, load.host_connection)
        displaced: list[Place] = []
        for lane in lanes:
            for request in list(lane.running.values()):
                if not self._fails(request):
                    displaced.append(self._life.lose_run(request))

        # Ranks that go to sleep hang up one after the other, and come back together.
        if len(step_group.ranks) > 1 and not self._sleep.ranks_may_leave:
            self._end_step_group(step_group, rank)
        step_group.lose_ranks()
        displaced += [place for lane in lanes for place in lane.start_over()]
        self._life.displace(displaced)

    def _fails(self, request: RequestState) -> bool:
        """End a request if it seems to be what ends the ranks that it runs on.

        After `MAX_LOSSES` losses it is a suspect. Suspects run one at a time, so one more loss is
        its own doing.
        """
        request.note_loss()
        if request.num_losses > MAX_LOSSES:
            text = (
                f"{request.num_losses} GPU actors were lost while it ran, the last time "
                f"beside no other suspect."
            )
            self._endings.fail(request, FailureKind.ENGINE_DEAD, text)
            return True
        return False

    def _end_step_group(self, step_group: StepGroup, lost_rank: int) -> None:
        """End all ranks of a step group, for they can only meet anew together.

        That includes the lost one if only its link broke: it would say hello again without the
        others.
        """
        for rank, attached in step_group.attached.items():
            reason = f"rank {lost_rank} of its step group was lost"
            self._end_rank(rank, attached.incarnation, reason)
        step_group.end_incarnation()

    def _end_rank(self, rank: int, incarnation: int, reason: str) -> None:
        cause = KillCause.GROUP_BROKEN
        self._outbox.emit(KillRank(rank=rank, incarnation=incarnation, cause=cause, reason=reason))
