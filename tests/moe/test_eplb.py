"""The reference planner's known answers, digit by digit."""

import numpy as np
import pytest

from raydix.moe.demand import balance
from raydix.moe.eplb import EplbPlan, eplb_placement, plan_eplb

LOADS = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ],
    dtype=np.float64,
)
HIERARCHICAL = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]
PLACES = [
    [
        *([12, -1], [15, 13], [11, -1], [6, -1], [7, 5], [0, 2]),
        *([1, -1], [3, -1], [4, -1], [9, -1], [8, 10], [14, -1]),
    ],
    [
        *([13, -1], [15, 11], [8, -1], [14, -1], [9, -1], [10, 12]),
        *([2, 4], [0, -1], [6, 3], [7, -1], [1, -1], [5, -1]),
    ],
]
GLOBAL = [
    [10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1],
    [1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7],
]


def plan(num_groups: int) -> EplbPlan:
    return plan_eplb(LOADS, 16, num_groups=num_groups, num_nodes=2, num_gpus=8)


def gpu_demand(experts_LP: np.ndarray) -> np.ndarray:
    """Every replica weighs its expert's load by the number of replicas."""
    counts_LE = np.stack([np.bincount(row, minlength=12) for row in experts_LP])
    share_LP = np.take_along_axis(LOADS / counts_LE, experts_LP, axis=1)
    return share_LP.reshape(2, 8, 2).sum(axis=2)


def balances(demand_LR: np.ndarray) -> list[float]:
    return [round(balance(row[None]).mean_of_layers, 4) for row in demand_LR]


def test_hierarchical_plan_is_the_published_one() -> None:
    found = plan(4)

    assert found.experts_LP.tolist() == HIERARCHICAL
    assert found.num_replicas_LE.tolist() == [
        [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1],
        [1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1],
    ]
    assert found.places_LEK.tolist() == PLACES


def test_hierarchical_plan_has_the_published_loads() -> None:
    demand_LR = gpu_demand(plan(4).experts_LP)

    assert demand_LR.tolist() == [
        [121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152],
        [173, 179.5, 120.5, 172, 123, 152, 118.5, 117.5],
    ]
    assert demand_LR.mean(axis=1).tolist() == [129.125, 144.5]
    assert demand_LR.max(axis=1).tolist() == [156, 179.5]
    assert balances(demand_LR) == [0.8277, 0.8050]


def test_global_plan_is_the_published_one_where_nodes_cannot_share_the_groups() -> None:
    found = plan(3)
    demand_LR = gpu_demand(found.experts_LP)

    assert found.experts_LP.tolist() == GLOBAL
    assert found.num_replicas_LE.tolist() == [
        [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1],
        [1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1],
    ]
    assert demand_LR.tolist() == [
        [130.5, 95.5, 130, 138, 138.5, 134.5, 134, 132],
        [123, 123, 125.5, 118.5, 172, 157.5, 172, 164.5],
    ]
    assert balances(demand_LR) == [0.9323, 0.8401]


def test_places_of_the_global_plan_invert_it() -> None:
    found = plan(3)

    for layer, expert in np.ndindex(2, 12):
        places = [place for place in found.places_LEK[layer, expert] if place >= 0]
        assert sorted(places) == [
            place for place in range(16) if found.experts_LP[layer, place] == expert
        ]


def test_experts_in_order_are_as_uneven_as_published() -> None:
    demand_LR = gpu_demand(np.tile(np.arange(16) % 12, (2, 1)))

    assert demand_LR.tolist() == [
        [111, 50.5, 269, 43, 129, 269, 111, 50.5],
        [63.5, 84, 216, 344, 258, 43, 63.5, 84],
    ]
    assert balances(demand_LR) == [0.4800, 0.4201]


def test_a_second_copy_on_a_rank_becomes_an_empty_seat() -> None:
    placement = eplb_placement(LOADS, 8, seats_per_rank=3, spare_seats=1, num_groups=3, num_nodes=2)

    # The global plan has expert 1 of layer 0 twice on the last GPU, expert 8 of layer 1 on GPU 6.
    assert placement.experts_LP[0, -3:].tolist() == [1, -1, -1]
    assert placement.num_empty_LR.tolist() == [
        [1, 1, 1, 1, 1, 1, 1, 2],
        [1, 1, 1, 1, 1, 1, 2, 1],
    ]


def test_uneven_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="15 places on 8 GPUs"):
        plan_eplb(LOADS, 15, num_groups=4, num_nodes=2, num_gpus=8)
