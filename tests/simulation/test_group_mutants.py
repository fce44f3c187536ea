"""Broken rules about lanes that step together, found by random workloads as in `test_mutants`."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.scheduler.rank_events import RankEvents
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.steps import sending
from raydix.runtime.scheduler.steps.planning import Planner
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.ranks import SimulatedRank
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload

OF_FOUR = replace(BASE_SETTINGS, num_lanes=4, lanes_per_group=4)
FEW_REQUESTS = Workload(seed=0, settings=OF_FOUR, num_requests=12, span_s=2.0)
"""Most steps find some lane without rows."""
DEATHS = replace(FEW_REQUESTS, num_requests=32, num_rank_kills=3, num_rank_flaps=3)


def idle_lanes_get_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that has nothing to do is left out of the step."""
    next_plans = Planner.next_plans

    def plan_busy(self: Planner, group: Any, now_s: float) -> Any:
        plans = next_plans(self, group, now_s)
        return [
            (lane, plan)
            for lane, plan in plans
            if len(plan.row_slots) or len(plan.loads) or len(plan.backups)
        ]

    monkeypatch.setattr(Planner, "next_plans", plan_busy)


def idle_ranks_skip_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without rows answers at once, and does not come to where the others wait for it."""
    monkeypatch.setattr(
        SimulatedRank,
        "is_met",
        lambda self, plan: len(plan.row_slots) > 0 and bool(plan.group_tokens.any()),
    )


def lanes_know_their_own_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan says nothing of the other lanes' tokens: their ranks choose another form or shape."""
    write = sending._write

    def write_own(lane: Any, draft: Any, shared: Any) -> Any:
        tokens = enumerate(shared.group_tokens.tolist())
        own = int32_array([number if index == lane.index else 0 for index, number in tokens])
        return write(lane, draft, replace(shared, group_tokens=own))

    monkeypatch.setattr(sending, "_write", write_own)


def only_the_lane_of_a_lost_rank_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its step group keep their L1, their requests and the number of their step."""
    lose_rank = RankEvents._lose_rank

    def lose(self: RankEvents, rank: int) -> None:
        with monkeypatch.context() as of_one:
            own = [lane for lane in self._lanes if rank in lane.ranks]
            of_one.setattr(StepGroup, "pick", lambda group, lanes: own)
            lose_rank(self, rank)

    monkeypatch.setattr(RankEvents, "_lose_rank", lose)


def groups_step_with_the_ranks_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane is planned once its own ranks are attached, whoever else is missing."""
    monkeypatch.setattr(StepGroup, "is_attached", property(lambda group: bool(group.attached)))
    monkeypatch.setattr(
        Lane,
        "connections",
        property(
            lambda lane: tuple(
                lane.step_group.attached[rank].connection
                for rank in lane.ranks
                if rank in lane.step_group.attached
            )
        ),
    )


CASES = [
    Case(mutant=idle_lanes_get_no_plan, workload=FEW_REQUESTS),
    Case(mutant=idle_ranks_skip_the_step, workload=FEW_REQUESTS),
    Case(mutant=lanes_know_their_own_tokens_alone, workload=FEW_REQUESTS),
    Case(mutant=only_the_lane_of_a_lost_rank_starts_over, workload=DEATHS),
    Case(mutant=groups_step_with_the_ranks_that_are_there, workload=DEATHS),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)


def test_idle_ranks_come_to_the_steps_of_others() -> None:
    cluster = run_workload(FEW_REQUESTS)

    assert cluster.meetings.num_idle > 100


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_die_again_and_again_answer_exactly(seed: int) -> None:
    workload = replace(DEATHS, seed=seed, faults=Faults(copy_s=0.1, lag_fraction=0.5))
    cluster: Cluster = run_workload(replace(workload, num_scheduler_kills=1, span_s=3.0))

    assert cluster.count("lost_ranks")
