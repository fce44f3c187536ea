"""Rows of a modelled rank whose numbers are not finite: rarely, and without a reason."""

import random
from dataclasses import replace

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan, StepResult


class NotFinite:
    """Owns: the slots of a rank that such numbers have got into. All ranks of a lane agree.

    `fate`: names the lane and its incarnation.
    """

    def __init__(self, fate: str) -> None:
        self._fate = fate
        self._slots: set[int] = set()

    def forget(self) -> None:
        """The rank has no requests any more."""
        self._slots.clear()

    def apply(self, plan: StepPlan) -> None:
        """Slots change hands."""
        self._slots.difference_update(plan.removed_slots.tolist())

    def strike(self, step: int, slot: int, fraction: float) -> bool:
        """True: what the request in this slot computes in this step and later is void."""
        if random.Random(f"{self._fate} {step} {slot}").random() < fraction:
            self._slots.add(slot)
        return slot in self._slots

    def add_to(self, result: StepResult, plan: StepPlan) -> StepResult:
        """The result with the rows that are void."""
        slots = self._slots.intersection(plan.row_slots.tolist())
        return replace(result, not_finite_slots=int32_array(sorted(slots)))
