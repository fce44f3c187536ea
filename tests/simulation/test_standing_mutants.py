"""Broken rules about plans that stand, found by random workloads as in `test_mutants`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler.ranks.decodes import DecodeBatch
from raydix.runtime.scheduler.ranks.in_flight import StepInFlight
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan, Taken
from tests.simulation.faults import Faults
from tests.simulation.standing import draw_standing_workload
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload

STANDING = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_lanes=1, max_repeats=5),
    faults=Faults(step_s=0.005),
    span_s=6.0,
    stop_fraction=0.5,
    max_output_tokens=60,
)
CROWDED = replace(
    STANDING, settings=replace(STANDING.settings, num_pages=(31,)), num_requests=48, span_s=3.0
)
"""Few pages are free."""
DEATHS = replace(STANDING, num_rank_flaps=12, num_requests=48)


def repeats_past_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan stands for as many steps as may be, whether or not there are pages for them."""
    monkeypatch.setattr(
        DecodeBatch, "_num_places", lambda self, rows: np.full(len(rows.slots), 1000)
    )


def late_tokens_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was computed past a stop counts as the others' tokens do."""
    monkeypatch.setattr(
        DecodeBatch, "is_current", lambda self, rows: np.ones(len(rows.slots), dtype=np.bool_)
    )


def plans_do_not_end_what_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank repeats a plan to its end, although another one came and was carried out."""
    take = StandingPlan.take

    def take_beside(self: StandingPlan, plan: StepPlan) -> Taken:
        stood, num_repeated = self._plan, self._num_repeated
        taken = take(self, plan)
        if self._plan is None and stood is not None:
            self._plan, self._num_repeated = stood, num_repeated
        return taken

    monkeypatch.setattr(StandingPlan, "take", take_beside)


def plans_stand_in_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has lost its Scheduler goes on with its plan once it has the next one."""
    monkeypatch.setattr(StandingPlan, "forget", lambda self: None)


def rows_begin_where_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a plan begin as if the one before it had been repeated to its end."""
    monkeypatch.setattr(StandingPlan, "_with_true_begins", lambda self, plan: plan)


def steps_left_out_count_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is believed to be as far as its plan would have brought it."""
    monkeypatch.setattr(DecodeBatch, "take_back", lambda self, rows: None)


def pages_are_free_after_the_plans_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A released page is free before the repetitions have ended that may name it."""
    take = Lane.take_done_step

    def take_early(self: Lane, now_s: float) -> StepInFlight | None:
        flight = take(self, now_s)
        if flight is not None:
            self.l1.pools.settle(flight.step + flight.num_repeats - flight.repetition)
        return flight

    monkeypatch.setattr(Lane, "take_done_step", take_early)


def repetitions_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends is thought to have no rows on their way but its plan's own."""
    leave = DecodeBatch.leave

    def leave_early(self: DecodeBatch, request: Any) -> None:
        self._num_sampled[request.slot] = self._num_known[request.slot]
        leave(self, request)

    monkeypatch.setattr(DecodeBatch, "leave", leave_early)


CASES = [
    Case(mutant=repeats_past_the_reserve, workload=CROWDED),
    Case(mutant=late_tokens_are_delivered, workload=STANDING),
    Case(mutant=plans_do_not_end_what_stood, workload=STANDING),
    Case(mutant=plans_stand_in_the_next_connection, workload=DEATHS),
    Case(mutant=rows_begin_where_they_are_told, workload=STANDING),
    Case(mutant=steps_left_out_count_as_planned, workload=STANDING),
    Case(mutant=pages_are_free_after_the_plans_own_step, workload=CROWDED),
    Case(mutant=repetitions_are_not_named, workload=CROWDED),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)


@pytest.mark.part
@pytest.mark.parametrize("seed", [2, 5, 6, 7, 8, 11, 12])
def test_workloads_in_which_plans_stand_end_exactly(seed: int) -> None:
    run_workload(draw_standing_workload(seed))


def test_plans_stand_and_are_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    num_repeated = num_cut = 0
    repeat, take = StandingPlan.repeat, StandingPlan.take

    def count_repeat(self: StandingPlan) -> StepPlan:
        nonlocal num_repeated
        num_repeated += 1
        return repeat(self)

    def count_take(self: StandingPlan, plan: StepPlan) -> Taken:
        nonlocal num_cut
        taken = take(self, plan)
        num_cut += taken.left_out is not None
        return taken

    monkeypatch.setattr(StandingPlan, "repeat", count_repeat)
    monkeypatch.setattr(StandingPlan, "take", count_take)
    run_workload(STANDING)

    assert num_repeated > 100
    assert num_cut > 10
