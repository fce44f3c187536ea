"""The plan that a rank repeats by itself until another comes: pure, so that simulated ranks use it.

A plan that stands is step after step of decodes. When another plan comes, the steps that are left
are not run. Whoever wrote that plan did not know how many they would be, and so where its rows
begin: that is known here.

    plan 7, repeated up to 3 times, slot 2 from position 40    steps 7 8 9 10: positions 40 to 43
    plan 11 comes behind step 8, slot 2 from position 44       steps 9 and 10 are left out, and
                                                               slot 2 goes on from position 42
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.runtime.messages.arrays import Int32Array, frozen
from raydix.runtime.messages.plan import StepPlan, StepsLeftOut

_AS_TOLD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A plan that has come, as it is to be carried out, and what it has ended."""

    plan: StepPlan
    left_out: StepsLeftOut | None
    """The repetitions of the plan before it that are not run; None if it was repeated to its end.
    """


class StandingPlan:
    """Owns: which plan a rank repeats, how often it has, and where rows begin after one cut short.

    What is left out is known to the Scheduler once it is told. Until a row is told to begin where
    its slot's last row has ended, the plans that come were written before.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._forget_all()

    def _forget_all(self) -> None:
        self._plan: StepPlan | None = None
        self._num_repeated = 0
        self._next_step: int | None = None
        self._begins: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        """Where the next row of each slot begins; -1: as it is told."""

    @property
    def may_repeat(self) -> bool:
        """Whether the plan that came last stands."""
        return self._plan is not None

    def forget(self) -> None:
        """Forget the plan that stands, as nobody may hear of its steps any more."""
        self._forget_all()

    def take(self, plan: StepPlan) -> Taken:
        """Take a plan, which is carried out instead of what stood.

        Raises AccountingError if it is not the next one, or a row is to begin before its slot's
        last one has ended.
        """
        if self._next_step is not None and plan.step != self._next_step:
            raise AccountingError(
                f"rank {self._rank} received plan {plan.step}; expected {self._next_step}"
            )
        left_out = self._cut_short()
        plan = self._with_true_begins(plan)

        num_repeats = plan.num_repeats
        self._next_step = plan.step + num_repeats + 1
        self._plan = plan if num_repeats else None
        self._num_repeated = 0
        return Taken(plan=plan, left_out=left_out)

    def repeat(self) -> StepPlan:
        """The plan that stands, once more: its rows alone, each one token further."""
        plan = self._plan
        assert plan is not None, "no plan stands"
        self._num_repeated += 1
        repeated = repetition(plan, self._num_repeated)
        # Every step of the plan has a number, and the next plan the one behind them.
        if repeated.step + 1 == self._next_step:
            self._plan = None
        return repeated

    def _cut_short(self) -> StepsLeftOut | None:
        """End the plan that stands; its slots go on where their rows have come to."""
        plan, num_repeated = self._plan, self._num_repeated
        if plan is None:
            return None
        is_cut = plan.row_repeats > num_repeated
        slots = plan.row_slots[is_cut]
        self._grow(int(slots.max(initial=-1)) + 1)
        self._begins[slots] = plan.row_starts[is_cut] + num_repeated + 1
        return StepsLeftOut(
            rank=self._rank,
            step=plan.step + num_repeated + 1,
            num_steps=plan.num_repeats - num_repeated,
        )

    def _grow(self, num_slots: int) -> None:
        missing = num_slots - len(self._begins)
        if missing > 0:
            more = np.full(missing, _AS_TOLD, dtype=np.int32)
            self._begins = np.concatenate((self._begins, more))

    def _with_true_begins(self, plan: StepPlan) -> StepPlan:
        """The plan with rows that begin where their slots' last rows have ended."""
        begins = self._begins
        if not len(begins) or (begins == _AS_TOLD).all():
            return plan
        for slots in (plan.removed_slots, [added.slot for added in plan.added]):
            begins[[slot for slot in slots if slot < len(begins)]] = _AS_TOLD

        rows = np.flatnonzero(plan.row_slots < len(begins))
        rows = rows[begins[plan.row_slots[rows]] != _AS_TOLD]
        if not len(rows):
            return plan
        slots = plan.row_slots[rows]
        late = plan.row_starts[rows] - begins[slots]
        if (late < 0).any() or (plan.row_num_tokens[rows] != 1).any():
            raise AccountingError(
                f"rank {self._rank}, plan {plan.step}: rows of slots {slots.tolist()} begin at "
                f"{plan.row_starts[rows].tolist()}; their last rows have ended at "
                f"{begins[slots].tolist()}"
            )
        # Told as it is: the Scheduler knows what was left out.
        ends = begins[slots] + 1
        if len(plan.row_repeats):
            ends += plan.row_repeats[rows]
        begins[slots] = np.where(late > 0, ends, _AS_TOLD)
        return _moved(plan, rows, late)


def _moved(plan: StepPlan, rows: NDArray[np.intp], late: Int32Array) -> StepPlan:
    """The plan with some rows so many positions before where they are told to begin."""
    moved = np.zeros(len(plan.row_slots), dtype=np.int32)
    moved[rows] = late
    return replace(
        plan,
        row_starts=frozen(plan.row_starts - moved),
        row_write_starts=frozen(plan.row_write_starts - moved),
        row_output_positions=frozen(plan.row_output_positions - moved),
    )


def repetition(plan: StepPlan, number: int) -> StepPlan:
    """The rows of a plan in its repetition of this number, counted from 1."""
    goes_on = plan.row_repeats >= number
    columns: tuple[Int32Array, ...] = (
        plan.row_slots,
        plan.row_starts,
        plan.row_num_tokens,
        plan.row_output_positions,
        plan.row_loads,
    )
    # Most go on: nothing is copied for them.
    if not goes_on.all():
        columns = tuple([frozen(column[goes_on]) for column in columns])

    slots, starts, ones, outputs, loads = columns
    starts = frozen(starts + np.int32(number))
    return StepPlan(
        step=plan.step + number,
        row_slots=slots,
        row_starts=starts,
        row_num_tokens=ones,
        row_write_starts=starts,
        row_output_positions=frozen(outputs + np.int32(number)),
        row_loads=loads,
    )
