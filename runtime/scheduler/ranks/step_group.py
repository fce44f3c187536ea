"""Ranks that step together: those of one lane, or of several lanes that share experts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from raydix.errors import AccountingError
from raydix.ids import ConnectionId
from raydix.runtime.scheduler.ranks.expert_balance import ExpertBalance
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.timers import Alarm

AnyLane = TypeVar("AnyLane")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRank:
    """A GPU actor that is there: the link that it is attached by, and which process it is."""

    connection: ConnectionId
    incarnation: int
    pid: int


class StepGroup:
    """Owns: which ranks of a step group are there, of what incarnation, and whether they are warm.

    Its lanes get each plan under one step number, and lose their ranks together.
    """

    def __init__(self, index: int, settings: SchedulerSettings) -> None:
        lanes, ranks = settings.lanes_per_group, settings.ranks_per_group
        self.index = index
        self.lanes = range(index * lanes, (index + 1) * lanes)
        """The indices of the step group's lanes."""
        self.ranks = range(index * ranks, (index + 1) * ranks)
        self.attached: dict[int, AttachedRank] = {}
        """The GPU actors that are attached, by rank."""
        self._alarm = Alarm()
        """The alarm for the deadline of the oldest step or copy."""
        self.experts = None if settings.experts is None else ExpertBalance(settings.experts)
        """The balance of the lanes' experts; None if lanes share no experts, or have none."""
        self._ended_incarnation = 0
        """The newest incarnation of which all ranks were ended together."""
        self._warm_lanes: set[int] = set()
        """The lanes that have done a step."""

    def pick(self, lanes: Sequence[AnyLane]) -> Sequence[AnyLane]:
        """The lanes of this step group, out of all."""
        return lanes[self.lanes.start : self.lanes.stop]

    @property
    def is_attached(self) -> bool:
        """Whether every rank is attached."""
        return len(self.attached) == len(self.ranks)

    @property
    def is_warm(self) -> bool:
        """Whether all ranks have done a step: later ones compile nothing."""
        return len(self._warm_lanes) == len(self.lanes)

    def set_alarm(self, time_s: float, now_s: float) -> bool:
        """Have the oldest step and copy looked at; False if they are before that anyway."""
        return self._alarm.advance(time_s, now_s)

    def attach(self, rank: int, attached: AttachedRank) -> None:
        """Attach a GPU actor, whose L1 is empty."""
        self.attached[rank] = attached

    def note_step(self, lane: int) -> None:
        """Note that all ranks of a lane have done a step."""
        self._warm_lanes.add(lane)

    def check(self, last_steps: Sequence[int]) -> None:
        """Raise AccountingError unless the lanes count steps together and the ranks are its own.

        last_steps: the number of each lane's last plan.
        """
        if len(last_steps) != len(self.lanes) or len(set(last_steps)) != 1:
            raise AccountingError(f"lanes {self.lanes} step together, but count {last_steps}")
        incarnations = {rank.incarnation for rank in self.attached.values()}
        if not self.attached.keys() <= set(self.ranks) or len(incarnations) > 1:
            raise AccountingError(
                f"ranks {sorted(self.attached)} of incarnations {sorted(incarnations)} are in the "
                f"group of ranks {self.ranks}"
            )

    def min_incarnation(self) -> int:
        """The oldest incarnation whose ranks may attach: all that step together are of one."""
        attached = [rank.incarnation for rank in self.attached.values()]
        return max([self._ended_incarnation + 1, *attached])

    def end_incarnation(self) -> None:
        """Let no rank of this incarnation step here again: those that are there are to end."""
        self._ended_incarnation = self.min_incarnation()

    def lose_ranks(self) -> None:
        """Forget all ranks: one is gone, and the others are to say hello anew."""
        self.attached.clear()
        self._warm_lanes.clear()
        if self.experts is not None:
            self.experts.lose_ranks()


def step_groups(settings: SchedulerSettings) -> list[StepGroup]:
    """All step groups of the engine."""
    assert settings.num_lanes % settings.lanes_per_group == 0, "every lane is in a step group"
    num_groups = settings.num_lanes // settings.lanes_per_group
    return [StepGroup(index, settings) for index in range(num_groups)]
