"""What was of late counts, and what is long ago does not."""

import pytest

from raydix.runtime.routing.load_average import AVERAGED_S, LoadAverage


def test_steady_traffic_is_told_as_it_is() -> None:
    load = LoadAverage(0.0)
    for second in range(600):
        load.work(second)
        load.arrive(second)
        load.rest(second + 0.25)
        load.arrive(second + 0.5)

    assert load.arrivals_per_s(600.0) == pytest.approx(2.0, rel=0.05)
    assert load.busy_fraction(600.0) == pytest.approx(0.25, abs=0.02)


def test_what_is_long_ago_is_forgotten() -> None:
    load = LoadAverage(0.0)
    load.arrive(0.0)
    load.work(0.0)
    load.rest(AVERAGED_S)

    assert load.busy_fraction(20 * AVERAGED_S) < 1e-6
    assert load.arrivals_per_s(20 * AVERAGED_S) < 1e-6


def test_a_clock_that_stands_changes_nothing() -> None:
    load = LoadAverage(5.0)
    load.work(5.0)

    assert load.busy_fraction(5.0) == 0.0
    assert load.busy_fraction(4.0) == 0.0
