"""A step group's experts: where they are, how much they are asked for, when and how they move.

Legend: L layers with experts, E experts, P seats of all ranks.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

from raydix.errors import AccountingError
from raydix.moe.demand import Balance, DemandAverage, balance, rank_demand
from raydix.moe.migration import Copy, Flip, Migration, Pacing
from raydix.moe.placement import FloatArray, Placement, initial_placement
from raydix.runtime.config.policies import Rebalance
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import ExpertCopies, PlacementChange
from raydix.runtime.scheduler.expert_plans import ExpertPlan, PlanningWanted
from raydix.runtime.scheduler.ranks.column_ids import next_id
from raydix.runtime.scheduler.settings import ExpertSettings

_HALF_LIFE_WINDOWS = 4.0
_STALLED_STEPS = 512
"""A migration counts as stalled after so many steps without progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOrders:
    """What the plans of one step say of experts, to all ranks alike."""

    copies: ExpertCopies = field(default_factory=ExpertCopies)
    change: PlacementChange | None = None


class ExpertBalance:
    """Owns: the migration of a step group's experts, and the average demand.

    Ranks are numbered within the group here. What the ranks of an earlier incarnation say never
    comes here: it belongs to a connection that is over.
    """

    def __init__(self, settings: ExpertSettings) -> None:
        self.settings = settings
        self._num_ranks = settings.facts.num_ranks
        self._initial = initial_placement(
            settings.num_layers,
            settings.num_experts,
            self._num_ranks,
            redundant_per_rank=settings.redundant_per_rank,
            spare_seats=settings.facts.spare_per_rank,
        )
        self._copy_ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._wanted: Placement | None = None
        """The placement that the last plan asks for; None: the placement at the start."""
        self._due: Placement | None = None
        """The placement that the next step begins to bring about; None if there is none."""
        self._plan = ExpertPlan(placement=None)
        self._balance = Balance(1.0, 1.0)
        self._num_moved = 0
        self._version = 0
        self._start_anew()

    def _start_anew(self) -> None:
        """Start anew with experts in their first places: ranks are new, or have gone back there."""
        settings = self.settings
        pacing = Pacing(
            max_copies_per_step=settings.copies_per_step,
            max_open_copies=2 * settings.copies_per_step,
        )
        self._migration = Migration(self._initial, version=self._version, pacing=pacing)
        self._demand = DemandAverage(
            settings.num_layers,
            settings.num_experts,
            self._num_ranks,
            half_life_windows=_HALF_LIFE_WINDOWS,
        )
        self._open: dict[int, Copy] = {}
        """The copies of experts that ranks have not acknowledged yet, by copy id."""
        self._planning: int | None = None
        """The number of the plan that is being made; None if none is."""
        self._asked: PlanningWanted | None = None
        self._steps_since_plan = 0
        self._progress: tuple[int, ...] = ()
        self._progress_s: float | None = None
        self._steps_without_progress = 0

    def lose_ranks(self) -> None:
        """Forget the ranks, which are gone; later ones start from the first placement.

        Then they go back to the one that was wanted last, beside their steps.
        """
        self._start_anew()
        self._due = self._wanted

    def plan_step(self, step: int, now_s: float) -> ExpertOrders:
        """The orders about experts that go out with `step`, which is planned for all ranks."""
        self._steps_since_plan += 1
        if self._due is not None and not self._migration.is_open:
            self._migration.start(self._due)
            self._due, self._steps_without_progress = None, 0
        if not self._migration.is_open:
            return ExpertOrders()

        orders = self._migration.plan_step(step)
        self._watch_progress(now_s)
        copies = {next_id(self._copy_ids, self._open): copy for copy in orders.copies}
        self._open |= copies
        self._num_moved += len(copies)
        change = None if orders.flip is None else self._change(orders.flip)
        return ExpertOrders(copies=self._columns(copies), change=change)

    def note_copied(self, rank: int, copy_ids: Int32Array) -> None:
        """Note copies that a rank has done. Raises AccountingError if it does not owe them."""
        if not len(copy_ids):
            return
        unknown = [copy_id for copy_id in copy_ids.tolist() if copy_id not in self._open]
        if unknown:
            raise AccountingError(f"rank {rank} acknowledges copies {unknown}, which nobody owes")
        copies = tuple([self._open.pop(copy_id) for copy_id in copy_ids.tolist()])
        self._migration.copied(rank, copies)

    def note_step(self, rank: int, step: int, demand: Int32Array) -> None:
        """Note that a rank has done a step, and the demand that it perhaps reports."""
        self._migration.finished(rank, step)
        if not len(demand):
            return
        counts_LE = demand.reshape(self.settings.num_layers, self.settings.num_experts)
        interval = self.settings.load_interval_steps
        if self._demand.add(rank, step, counts_LE, num_steps=interval):
            demand_LR = rank_demand(self._migration.placement, self._demand.window_LE)
            self._balance = balance(demand_LR)
            self._ask_if_due()

    def take_asked(self) -> PlanningWanted | None:
        """Take the request for a plan, if there is one, so that it is made once."""
        asked, self._asked = self._asked, None
        return asked

    def note_plan(self, number: int, plan: ExpertPlan | None) -> None:
        """Note the plan that has been made; None if it could not be."""
        if number != self._planning:
            return
        self._planning = None
        if plan is not None:
            self._plan = plan
        if plan is not None and plan.placement is not None:
            self._wanted = self._due = plan.placement

    def figures(self, now_s: float) -> dict[str, float]:
        """Gauges and counters, by name."""
        is_open = self._migration.is_open
        since_s = 0.0 if self._progress_s is None else now_s - self._progress_s
        return {
            "expert_balance_mean_of_layers": self._balance.mean_of_layers,
            "expert_balance_ratio_of_sums": self._balance.ratio_of_sums,
            "expert_time_imbalance": self._plan.imbalance_before,
            "expert_time_imbalance_wanted": self._plan.imbalance_after,
            "expert_moves": self._num_moved,
            "expert_moves_left": self._migration.num_copies_left,
            "expert_placement_version": self._migration.version,
            "expert_migration_stalled": float(is_open and self._is_stalled),
            "expert_migration_progress_age_s": since_s if is_open else 0.0,
        }

    def check(self) -> None:
        """Raise AccountingError unless seats and copies agree with the migration."""
        self._migration.check()

    @property
    def _is_stalled(self) -> bool:
        return self._steps_without_progress >= _STALLED_STEPS

    def _ask_if_due(self) -> None:
        settings = self.settings
        is_busy = self._migration.is_open or self._due is not None or self._planning is not None
        is_due = self._steps_since_plan >= settings.rebalance_interval_steps
        if settings.facts.policy is Rebalance.NONE or is_busy or not is_due:
            return
        self._steps_since_plan = 0
        self._planning = next(self._numbers)
        self._asked = PlanningWanted(
            number=self._planning,
            current=self._migration.placement,
            rows_per_step_LE=self._demand.rows_per_step_LE,
        )

    def _watch_progress(self, now_s: float) -> None:
        """Count steps without progress. Steps are the clock: without any, nothing can move."""
        migration = self._migration
        progress = migration.num_copies_left, migration.num_copies, migration.num_flips
        if progress != self._progress:
            self._progress, self._progress_s = progress, now_s
            self._steps_without_progress = 0
        else:
            self._steps_without_progress += 1

    def _columns(self, copies: dict[int, Copy]) -> ExpertCopies:
        if not copies:
            return ExpertCopies()
        seats_per_rank = self._initial.seats_per_rank
        places = [divmod(copy.physical, seats_per_rank) for copy in copies.values()]
        return ExpertCopies(
            copy_ids=int32_array(copies),
            layers=int32_array(copy.layer for copy in copies.values()),
            experts=int32_array(copy.expert for copy in copies.values()),
            ranks=int32_array(rank for rank, _ in places),
            seats=int32_array(seat for _, seat in places),
        )

    def _change(self, flip: Flip) -> PlacementChange:
        self._version = flip.version
        layers = list(flip.layers)
        return PlacementChange(
            version=flip.version,
            layers=int32_array(layers),
            experts=int32_array(flip.placement.experts_LP[layers].reshape(-1)),
            demand=_scaled(self._demand.rows_LE[layers]),
        )


def _scaled(rows_XE: FloatArray) -> Int32Array:
    """Each layer's rows, in millionths of the largest value."""
    largest_X = rows_XE.max(axis=1, keepdims=True)
    parts_XE = np.divide(rows_XE, largest_X, out=np.ones_like(rows_XE), where=largest_X > 0)
    return int32_array((parts_XE * 1e6).astype(np.int32).reshape(-1))
