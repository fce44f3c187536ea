"""The incremental planner levels ranks with few moves, and the gate lets pass what pays."""

from dataclasses import replace

import numpy as np
import pytest

from raydix.moe.demand import balance, rank_demand
from raydix.moe.eplb import eplb_placement
from raydix.moe.expert_time import ExpertTime, rank_costs, replica_rows
from raydix.moe.placement import EMPTY, Placement, initial_placement
from raydix.moe.planner import Gate, PlannerLimits, Rebalance, num_moves, rebalance
from tests.moe.migration_world import random_wanted

LIMITS = PlannerLimits(balance=0.985, max_moves=24, spare_seats=1)


def drifting_demand(sigma: float, num_steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    demand = [rng.gamma(0.6, size=(12, 64))]
    for _ in range(num_steps):
        demand.append(demand[-1] * np.exp(sigma * rng.standard_normal((12, 64))))
    return demand


def eplb(demand_LE: np.ndarray) -> Placement:
    return eplb_placement(demand_LE, 4, seats_per_rank=19, spare_seats=1)


@pytest.mark.parametrize(
    ("sigma", "min_balance", "max_moved"), [(0.1, 0.985, 0.05), (0.4, 0.98, 0.1)]
)
def test_drifting_loads_are_followed_with_few_moves(
    sigma: float, min_balance: float, max_moved: float
) -> None:
    first, *later = drifting_demand(sigma, 4)
    placement = eplb(first)

    for demand_LE in later:
        plan = rebalance(placement, replica_rows(demand_LE, 4), LIMITS)

        found = balance(rank_demand(plan.placement, demand_LE)).mean_of_layers
        assert found >= min_balance > balance(rank_demand(placement, demand_LE)).mean_of_layers
        assert plan.num_moves <= max_moved * 12 * 72
        assert num_moves(placement, eplb(demand_LE)) > 0.6 * 12 * 72
        placement = plan.placement


def test_a_plan_counts_its_moves_and_costs() -> None:
    demand_LE = drifting_demand(0.4, 1)[1]
    current = initial_placement(12, 64, 4, redundant_per_rank=2, spare_seats=1)

    plan = rebalance(current, replica_rows(demand_LE, 4), LIMITS)

    before_LR, after_LR = (rank_demand(each, demand_LE) for each in (current, plan.placement))
    assert plan.num_moves == num_moves(current, plan.placement) > 0
    assert plan.cost_before == pytest.approx(before_LR.max(axis=1).sum())
    assert plan.cost_after == pytest.approx(after_LR.max(axis=1).sum())
    assert plan.imbalance_after == pytest.approx(1 / balance(after_LR).ratio_of_sums)
    assert plan.imbalance_after < plan.imbalance_before


@pytest.mark.parametrize("max_moves", [0, 2, 7])
def test_no_layer_moves_more_than_the_cap(max_moves: int) -> None:
    demand_LE = drifting_demand(0.4, 1)[1]
    current = initial_placement(12, 64, 4, redundant_per_rank=2, spare_seats=1)

    plan = rebalance(current, replica_rows(demand_LE, 4), replace(LIMITS, max_moves=max_moves))

    is_new_LRE = (current.physical_LRE == EMPTY) & (plan.placement.physical_LRE != EMPTY)
    assert is_new_LRE.sum(axis=(1, 2)).max() <= max_moves
    assert (plan.num_moves > 0) == (max_moves > 0)


@pytest.mark.parametrize("spare_seats", [1, 2])
def test_spare_seats_stay_empty(spare_seats: int) -> None:
    demand_LE = drifting_demand(0.4, 1)[1]
    current = initial_placement(12, 64, 4, spare_seats=3)

    plan = rebalance(current, replica_rows(demand_LE, 4), replace(LIMITS, spare_seats=spare_seats))

    assert plan.placement.num_empty_LR.min() == spare_seats


def test_level_ranks_and_a_rank_alone_are_left_as_they_are() -> None:
    for num_ranks in (1, 2):
        current = initial_placement(2, 8, num_ranks, spare_seats=1)
        plan = rebalance(current, replica_rows(np.ones((2, 8)), num_ranks), LIMITS)
        assert np.array_equal(plan.placement.experts_LP, current.experts_LP)


def test_an_expert_hotter_than_a_rank_comes_to_more_ranks_though_all_places_are_taken() -> None:
    # Rank 0 has room, the others none, so light experts make way for copies of expert 0.
    current = Placement(
        np.array([[0, *[EMPTY] * 5, 1, 2, 3, 4, 5, EMPTY, 6, 7, 8, 9, 10, EMPTY]]), 11, 3
    )
    demand_LE = np.array([[60.0, *[3.0] * 10]])

    plan = rebalance(current, replica_rows(demand_LE, 3), LIMITS)

    assert plan.placement.num_replicas_LE[0, 0] == 3
    assert rank_demand(plan.placement, demand_LE)[0].max() <= 32


@pytest.mark.parametrize("max_moves", [2, 3, 24])
@pytest.mark.parametrize("seed", range(6))
def test_no_layer_becomes_slower_whatever_the_cap(seed: int, max_moves: int) -> None:
    rng = np.random.default_rng(seed)
    first = initial_placement(8, 10, 4, redundant_per_rank=2, spare_seats=2)
    current = random_wanted(rng, first, spare_seats=1)
    rows_LE = rng.gamma(0.3, size=(8, 10)) * 50
    # Both costs decide, each in some layers.
    costs_CLEN = replace(TIME, flops_per_s=2e4).replica_seconds(rows_LE, 4)

    plan = rebalance(current, costs_CLEN, replace(LIMITS, max_moves=max_moves))
    again = rebalance(current, costs_CLEN, replace(LIMITS, max_moves=max_moves))

    before_LR, after_LR = (rank_costs(each, costs_CLEN) for each in (current, plan.placement))
    assert (after_LR.max(axis=1) <= before_LR.max(axis=1)).all()
    assert plan.cost_after < plan.cost_before
    assert np.array_equal(plan.placement.experts_LP, again.placement.experts_LP)


def test_a_search_that_the_cap_cuts_short_leaves_the_layer_as_it_was() -> None:
    # Expert 0 is on three of eight ranks. On a fourth it costs more at first than on each of three:
    # others there have to go, for which two moves are not enough.
    own = [[0, *[EMPTY] * 4]] * 3 + [
        [1 + 3 * rank + i for i in range(3)] + [EMPTY] * 2 for rank in range(5)
    ]
    current = Placement(np.array(own).reshape(1, -1), 16, 8)
    costs_CLEN = replica_rows(np.array([[4.85, *[0.2] * 15]]), 8)

    short = rebalance(current, costs_CLEN, replace(LIMITS, max_moves=2))
    whole = rebalance(current, costs_CLEN, LIMITS)

    assert short.num_moves == 0
    assert short.cost_after == short.cost_before
    assert whole.cost_after < 0.9 * whole.cost_before


TIME = ExpertTime(
    expert_bytes=1000,
    memory_bytes_per_s=1e6,
    row_flops=1.0,
    flops_per_s=1e3,
    row_bytes=0,
    link_bytes_per_s=1.0,
)


def test_replicas_cost_weights_where_those_decide() -> None:
    # Two rows or more hit an expert for sure, nearly; the arithmetic is next to nothing.
    demand_LE = np.array([[40.0, 40.0, 40.0, 40.0]])
    replicated = Placement(np.array([[0, 1, 2, EMPTY, 2, 3, EMPTY, EMPTY]]), 4, 2)
    costs = replace(TIME, row_flops=1e-6).replica_seconds(demand_LE, 2)

    plan = rebalance(replicated, costs, LIMITS)

    assert rank_costs(replicated, costs).round(6).tolist() == [[3e-3, 2e-3]]
    assert rank_costs(plan.placement, costs).round(6).tolist() == [[2e-3, 2e-3]]
    assert plan.num_moves == 0


GATE = Gate(
    stable_steps=1000, copy_bytes_per_s=1e6, slowdown=0.1, margin=2.0, min_gain_fraction=0.01
)


def plan_of(*, saving_s: float, num_moves: int) -> Rebalance:
    return Rebalance(
        initial_placement(1, 4, 2),
        num_moves,
        cost_before=1.0,
        cost_after=1.0 - saving_s,
        imbalance_before=1.5,
        imbalance_after=1.0,
    )


def test_the_gate_weighs_what_a_plan_saves_against_what_copying_takes() -> None:
    # 400 copies of 1 MB over two ranks take 200 s, in which steps lose a tenth: 20 s, twice.
    assert GATE.is_worth(plan_of(saving_s=0.041, num_moves=400), expert_bytes=10**6)
    assert not GATE.is_worth(plan_of(saving_s=0.039, num_moves=400), expert_bytes=10**6)


def test_the_gate_leaves_small_gains_alone_even_if_they_are_cheap() -> None:
    assert GATE.is_worth(plan_of(saving_s=0.011, num_moves=1), expert_bytes=1)
    assert not GATE.is_worth(plan_of(saving_s=0.009, num_moves=1), expert_bytes=1)
