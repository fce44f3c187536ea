"""Where the ranks of a step group wait for each other, as their collectives do."""

from collections import defaultdict
from collections.abc import Callable

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler.settings import SchedulerSettings

_Step = tuple[int, int, int]
"""A group, its ranks' incarnation, and the number of a step."""


class Meetings:
    """Owns: which ranks have begun which step, and wait until all of their group have.

    A rank whose group runs another shape, or that never comes, is a bug: the first is told here,
    and the others wait for the second for ever.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._waiting: defaultdict[_Step, dict[int, Callable[[], None]]] = defaultdict(dict)
        self._columns: dict[_Step, list[list[int]]] = {}
        self.num_idle = 0
        """Ranks that came to a step without rows of their own."""

    def begin(self, rank: int, incarnation: int, plan: StepPlan, go: Callable[[], None]) -> None:
        """A rank begins a step: `go` is called once all ranks of its group have begun it."""
        self._check(rank, plan)
        group = rank // self._settings.ranks_per_group
        step = group, incarnation, plan.step
        columns = [plan.group_rows.tolist(), plan.group_tokens.tolist()]
        known = self._columns.setdefault(step, columns)
        assert columns == known, f"rank {rank}, step {plan.step}: {columns} instead of {known}"

        waiting = self._waiting[step]
        assert rank not in waiting, f"rank {rank} begins step {plan.step} twice"
        waiting[rank] = go
        self.num_idle += not len(plan.row_slots)
        if len(waiting) == self._settings.ranks_per_group:
            del self._waiting[step], self._columns[step]
            for each in waiting.values():
                each()

    def is_waiting(self, rank: int, incarnation: int) -> bool:
        """It has begun a step that others of its group have not."""
        group = rank // self._settings.ranks_per_group
        return any(
            step[:2] == (group, incarnation) and rank in ranks
            for step, ranks in self._waiting.items()
        )

    def _check(self, rank: int, plan: StepPlan) -> None:
        """A rank knows from its plan what it would do itself, and how many others there are."""
        width = self._settings.lanes_per_group
        lane = rank // self._settings.ranks_per_lane % width
        own = len(plan.row_slots), int(plan.row_num_tokens.sum())
        told = int(plan.group_rows[lane]), int(plan.group_tokens[lane])
        assert len(plan.group_rows) == len(plan.group_tokens) == width
        assert own == told, f"rank {rank}, step {plan.step}: rows and tokens {own}, not {told}"
