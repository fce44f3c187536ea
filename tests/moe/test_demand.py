"""What ranks count becomes an average, and figures of balance."""

import numpy as np
import pytest

from raydix.moe.demand import DemandAverage, balance, rank_demand
from raydix.moe.placement import EMPTY, Placement


def test_balance_is_told_both_ways() -> None:
    found = balance(np.array([[1.0, 3.0], [40.0, 40.0], [0.0, 0.0]]))

    assert found.mean_of_layers == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert found.ratio_of_sums == pytest.approx(42 / 43)


def test_nothing_at_all_is_even() -> None:
    found = balance(np.zeros((2, 2)))

    assert (found.mean_of_layers, found.ratio_of_sums) == (1.0, 1.0)


def test_replicas_share_an_experts_load() -> None:
    placement = Placement(np.array([[0, 1, 0, EMPTY]]), 2, 2)

    assert rank_demand(placement, np.array([[8, 2]])).tolist() == [[6.0, 4.0]]


def test_a_window_ends_when_all_ranks_have_reported_it() -> None:
    average = DemandAverage(1, 2, 2, half_life_windows=1)

    assert not average.add(0, 10, np.array([[6, 0]]), num_steps=10)
    assert average.rows_per_step_LE.tolist() == [[0.0, 0.0]]
    assert average.add(1, 10, np.array([[2, 4]]), num_steps=10)
    assert average.rows_per_step_LE.tolist() == [[0.8, 0.4]]


def test_older_windows_count_by_half_lives() -> None:
    average = DemandAverage(1, 1, 1, half_life_windows=2)

    for step, rows in ((10, 40), (20, 0), (30, 0)):
        average.add(0, step, np.array([[rows]]), num_steps=10)

    assert average.rows_LE.tolist() == [[pytest.approx(20)]]
    steps = 10 * (1 + 0.5**0.5 + 0.5)
    assert average.rows_per_step_LE.tolist() == [[pytest.approx(20 / steps)]]


def test_a_window_that_a_rank_left_out_counts_for_nothing() -> None:
    average = DemandAverage(1, 1, 2, half_life_windows=1)

    average.add(0, 10, np.array([[1000]]), num_steps=10)
    average.add(0, 20, np.array([[6]]), num_steps=10)
    assert average.add(1, 20, np.array([[4]]), num_steps=10)
    assert not average.add(1, 10, np.array([[1000]]), num_steps=10)

    assert average.window_LE.tolist() == [[10.0]]
    assert average.rows_per_step_LE.tolist() == [[1.0]]


def test_a_rank_whose_reports_come_late_loses_no_window() -> None:
    average = DemandAverage(1, 1, 2, half_life_windows=1)

    average.add(0, 2, np.array([[20]]), num_steps=2)
    for step in range(4, 12, 2):
        assert not average.add(0, step, np.array([[10 * step]]), num_steps=2)
        assert average.add(1, step - 2, np.array([[step - 2]]), num_steps=2)
        assert average.window_LE.tolist() == [[11.0 * (step - 2)]]
