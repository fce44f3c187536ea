"""Broken rules about experts that move, found by random workloads as in `test_mutants`."""

import random
from dataclasses import replace
from typing import Any

import pytest

from raydix.moe.migration import Migration
from raydix.runtime.config.policies import Rebalance
from raydix.runtime.scheduler.ranks.expert_balance import ExpertBalance
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.faults import Faults
from tests.simulation.ranks import SimulatedRank
from tests.simulation.step_groups import with_experts
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload


def _of_four() -> SchedulerSettings:
    """Four ranks among which experts move nearly all the time, two at once."""
    settings = replace(BASE_SETTINGS, num_lanes=4, lanes_per_group=4)
    settings = with_experts(random.Random(0), settings)
    assert settings.experts is not None
    experts = replace(
        settings.experts,
        facts=replace(settings.experts.facts, policy=Rebalance.DEEPSEEK, spare_per_rank=1),
        num_layers=3,
        num_experts=6,
        redundant_per_rank=1,
        rebalance_interval_steps=4,
        load_interval_steps=1,
        copies_per_step=2,
    )
    return replace(settings, experts=experts)


MOVING = Workload(
    seed=0,
    settings=_of_four(),
    storage=None,
    faults=Faults(copy_s=0.02, link_delay_s=0.005, planner_s=0.01),
    num_requests=24,
    span_s=2.0,
)
QUICK_COPIES = replace(
    MOVING, faults=Faults(copy_s=0.002, link_delay_s=0.0005, planner_s=0.01, step_s=0.03)
)
"""Copies end before the steps that were sent before them."""
DEATHS = replace(MOVING, num_rank_kills=2, num_rank_flaps=2, num_scheduler_kills=3, span_s=3.0)


def flip_before_all_are_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks route to an expert as soon as its copy is ordered."""
    monkeypatch.setattr(Migration, "_has_landed", lambda self, begun: True)
    copied = Migration.copied

    def forgive(self: Migration, rank: int, copies: Any) -> None:
        # What has been flipped is not waited for.
        begun = {copy for each in self._begun for copy in each.copies}
        copied(self, rank, tuple([copy for copy in copies if copy in begun]))

    monkeypatch.setattr(Migration, "copied", forgive)
    monkeypatch.setattr(Migration, "check", lambda self: None)


def free_a_source_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seat is filled anew as soon as ranks have been told not to route to it."""
    commit = Migration._commit

    def commit_and_free(self: Migration, experts_LP: Any, step: int) -> Any:
        flip = commit(self, experts_LP, step)
        self._states_LP[self._states_LP == 3] = 0
        return flip

    monkeypatch.setattr(Migration, "_commit", commit_and_free)


def ranks_keep_experts_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that lost its Scheduler says hello to the next one with experts where they are."""
    monkeypatch.setattr(SimulatedRank, "_restore_experts", lambda self: None)


def the_balance_outlives_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ranks are taken to have experts where the old ones had them."""
    monkeypatch.setattr(ExpertBalance, "lose_ranks", lambda self: None)


CASES = [
    Case(mutant=flip_before_all_are_acknowledged, workload=MOVING),
    Case(mutant=free_a_source_early, workload=QUICK_COPIES),
    Case(mutant=ranks_keep_experts_where_they_are, workload=DEATHS),
    Case(mutant=the_balance_outlives_its_ranks, workload=DEATHS),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)


def test_experts_move_on_every_rank_while_requests_are_served() -> None:
    cluster = run_workload(MOVING)

    assert cluster.count("expert_moves") > 50
    assert cluster.count("expert_placement_version") > 10
    assert all(experts.num_copies for experts in cluster.experts_of_group(0))


@pytest.mark.parametrize("seed", range(4))
def test_experts_move_through_deaths_of_ranks_and_schedulers(seed: int) -> None:
    cluster = run_workload(replace(DEATHS, seed=seed))

    assert cluster.count("expert_moves") > 50
    assert cluster.count("lost_ranks")
