"""A group's experts follow their load: when plans are asked for, and how steps carry them out."""

from dataclasses import replace

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.moe.expert_time import ExpertTime
from raydix.moe.placement import EMPTY
from raydix.runtime.config.policies import Rebalance
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.scheduler.expert_plans import ExpertFacts, ExpertPlan, plan_experts
from raydix.runtime.scheduler.ranks.expert_balance import ExpertBalance
from raydix.runtime.scheduler.settings import ExpertSettings

TIME = ExpertTime(
    expert_bytes=1 << 20,
    memory_bytes_per_s=1e12,
    row_flops=1e6,
    flops_per_s=1e12,
    row_bytes=1 << 10,
    link_bytes_per_s=1e11,
)
FACTS = ExpertFacts(
    policy=Rebalance.INCREMENTAL,
    num_ranks=2,
    spare_per_rank=1,
    time=TIME,
    copy_bytes_per_s=1e10,
    stable_steps=1_000_000,
)
SETTINGS = ExpertSettings(
    num_layers=3,
    num_experts=8,
    redundant_per_rank=0,
    facts=FACTS,
    rebalance_interval_steps=4,
    load_interval_steps=2,
    copies_per_step=1,
)
SKEWED = int32_array(np.tile([900, 800, 700, 600, 5, 5, 5, 5], 3))


class Group:
    """Ranks that carry out what steps say at once, and what an expert balance makes of it."""

    def __init__(self, settings: ExpertSettings = SETTINGS) -> None:
        self.balance = ExpertBalance(settings)
        self.step = 0
        self.held = [row.tolist() for row in self.balance._migration.placement.experts_LP]
        """What each seat holds, by layer."""
        self.routed = [list(row) for row in self.held]
        self.versions: list[int] = []

    def run_step(self, demand=None) -> None:
        self.step += 1
        orders = self.balance.plan_step(self.step, float(self.step))
        copies, change = orders.copies, orders.change
        if change is not None:
            self.versions.append(change.version)
            for layer, row in zip(change.layers, change.experts.reshape(-1, 10), strict=True):
                self.routed[layer] = row.tolist()
        for layer, experts in enumerate(self.routed):
            assert all(e in (EMPTY, self.held[layer][p]) for p, e in enumerate(experts))
            assert set(experts) - {EMPTY} == set(range(8))

        for i in range(len(copies)):
            place = int(copies.ranks[i]) * 5 + int(copies.seats[i])
            assert self.routed[copies.layers[i]][place] == EMPTY
            self.held[copies.layers[i]][place] = int(copies.experts[i])
        for rank in range(2):
            own = copies.copy_ids[copies.ranks == rank]
            self.balance.note_copied(rank, own)
            reported = empty() if demand is None or self.step % 2 else demand
            self.balance.note_step(rank, self.step, reported)
        self.balance.check()


def _plan(group: Group) -> ExpertPlan:
    asked = group.balance.take_asked()
    assert asked is not None
    plan = plan_experts(asked.current, asked.rows_per_step_LE, group.balance.settings.facts)
    group.balance.note_plan(asked.number, plan)
    return plan


def test_a_plan_is_asked_for_once_the_interval_has_passed_and_loads_are_known() -> None:
    group = Group()
    asked = []
    for _ in range(10):
        group.run_step(SKEWED)
        wanted = group.balance.take_asked()
        asked.append(None if wanted is None else wanted.number)

    # And no other before it is answered.
    assert asked == [None, None, None, 1, *[None] * 6]


def test_rows_per_step_are_those_of_all_ranks() -> None:
    group = Group()
    for _ in range(4):
        group.run_step(SKEWED)
    asked = group.balance.take_asked()
    assert asked is not None
    # Two ranks say so every two steps.
    np.testing.assert_allclose(asked.rows_per_step_LE.reshape(-1), SKEWED)


@pytest.mark.parametrize("policy", [Rebalance.INCREMENTAL, Rebalance.DEEPSEEK])
def test_steps_bring_experts_to_where_the_plan_wants_them(policy: Rebalance) -> None:
    group = Group(replace(SETTINGS, facts=replace(FACTS, policy=policy)))
    for _ in range(4):
        group.run_step(SKEWED)
    before = group.balance.figures(0.0)["expert_balance_mean_of_layers"]
    plan = _plan(group)
    assert plan.placement is not None

    for _ in range(40):
        group.run_step(SKEWED)
        group.balance.take_asked()

    figures = group.balance.figures(0.0)
    assert before < 0.6 < 0.9 < figures["expert_balance_mean_of_layers"]
    assert figures["expert_moves"] == plan.num_moves > 0
    assert figures["expert_moves_left"] == 0
    assert group.versions == list(range(1, len(group.versions) + 1))
    for layer in range(3):
        for rank in range(2):
            own = slice(5 * rank, 5 * rank + 5)
            assert set(group.routed[layer][own]) == set(
                plan.placement.experts_LP[layer, own].tolist()
            )


def test_nothing_moves_when_it_is_off_or_does_not_pay() -> None:
    even = int32_array(np.full(24, 100))
    for settings, demand in [
        (replace(SETTINGS, facts=replace(FACTS, policy=Rebalance.NONE)), SKEWED),
        (replace(SETTINGS, facts=replace(FACTS, stable_steps=0)), SKEWED),
        (SETTINGS, even),
    ]:
        group = Group(settings)
        for _ in range(20):
            group.run_step(demand)
            asked = group.balance.take_asked()
            if asked is not None:
                plan = plan_experts(asked.current, asked.rows_per_step_LE, settings.facts)
                group.balance.note_plan(asked.number, plan)
        assert group.balance.figures(0.0)["expert_moves"] == 0
        assert not group.versions


def test_new_ranks_start_afresh_and_go_back_to_what_was_wanted() -> None:
    group = Group()
    for _ in range(4):
        group.run_step(SKEWED)
    plan = _plan(group)
    assert plan.placement is not None
    for _ in range(5):
        group.run_step(SKEWED)
    num_versions = len(group.versions)
    asked = group.balance.take_asked()

    group.balance.lose_ranks()
    fresh = Group()
    group.held, group.routed, group.step = fresh.held, fresh.routed, 0
    assert asked is None
    for _ in range(40):
        group.run_step(SKEWED)

    assert group.versions == list(range(1, len(group.versions) + 1))
    assert len(group.versions) > num_versions
    for layer in range(3):
        assert set(group.routed[layer][:5]) == set(plan.placement.experts_LP[layer, :5].tolist())


def test_a_plan_for_ranks_that_are_gone_is_dropped() -> None:
    group = Group()
    for _ in range(4):
        group.run_step(SKEWED)
    asked = group.balance.take_asked()
    assert asked is not None
    group.balance.lose_ranks()
    plan = plan_experts(asked.current, asked.rows_per_step_LE, FACTS)
    group.balance.note_plan(asked.number, plan)

    group.run_step()
    assert group.balance.figures(0.0)["expert_moves"] == 0


def test_a_copy_that_nobody_owes_is_refused() -> None:
    with pytest.raises(AccountingError, match="which nobody owes"):
        Group().balance.note_copied(0, int32_array([3]))


def test_a_migration_that_gets_nowhere_counts_as_stalled() -> None:
    group = Group()
    for _ in range(4):
        group.run_step(SKEWED)
    _plan(group)
    balance = group.balance
    for step in range(5, 600):
        # Copies are ordered and never acknowledged.
        balance.plan_step(step, float(step))
        for rank in range(2):
            balance.note_step(rank, step, empty())

    figures = balance.figures(1000.0)
    assert figures["expert_migration_stalled"] == 1.0
    assert figures["expert_migration_progress_age_s"] > 900
