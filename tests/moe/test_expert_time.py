"""Predicted times of a rank's experts follow weights, arithmetic and received rows."""

from dataclasses import replace

import numpy as np
import pytest

from raydix.moe.expert_time import ExpertTime, imbalance, rank_costs, replica_rows
from raydix.moe.placement import EMPTY, Placement

TIME = ExpertTime(
    expert_bytes=2000,
    memory_bytes_per_s=1e6,
    row_flops=500.0,
    flops_per_s=1e6,
    row_bytes=100,
    link_bytes_per_s=1e6,
)
PLACEMENT = Placement(np.array([[0, 1, 0, EMPTY]]), 2, 2)
ROWS = np.array([[40.0, 20.0]])


def test_the_slower_of_weights_and_arithmetic_counts_and_received_rows_on_top() -> None:
    costs_LR = rank_costs(PLACEMENT, TIME.replica_seconds(ROWS, 2))
    slow_memory = replace(TIME, memory_bytes_per_s=1e5)
    slow_LR = rank_costs(PLACEMENT, slow_memory.replica_seconds(ROWS, 2))

    # 20 rows of each replica of expert 0, own ones; 20 of expert 1, of which 10 travel to rank 0.
    assert costs_LR.tolist() == [[pytest.approx(0.020 + 0.001), pytest.approx(0.010)]]
    assert slow_LR.tolist() == [[pytest.approx(0.040 + 0.001), pytest.approx(0.020)]]


def test_weights_that_no_row_hits_are_not_read() -> None:
    rows_LE = np.array([[0.0, 0.1]])
    only_weights = replace(TIME, row_flops=0.0, row_bytes=0)

    costs_LR = rank_costs(PLACEMENT, only_weights.replica_seconds(rows_LE, 2))

    assert costs_LR.tolist() == [[pytest.approx(0.002 * (1 - np.exp(-0.1))), 0.0]]


def test_rows_alone_are_shared_by_replicas() -> None:
    assert rank_costs(PLACEMENT, replica_rows(ROWS, 2)).tolist() == [[40.0, 20.0]]


def test_imbalance_is_the_time_of_the_slowest_ranks_by_that_of_level_ones() -> None:
    assert imbalance(np.array([[1.0, 3.0], [2.0, 2.0]])) == pytest.approx(5 / 4)
    assert imbalance(np.zeros((1, 2))) == 1.0
