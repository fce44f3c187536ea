"""How much of a way that is believed to be dearer is tried, and when."""

import math

import pytest

from raydix.ids import LeaseId
from raydix.runtime.routing.predictors import TimePredictor
from raydix.runtime.scheduler.life.trials import (
    Trials,
    num_affordable,
    num_soon_done,
)

_LEASE = LeaseId(1)


def test_a_trial_may_cost_one_percent_of_the_time_since_the_last_one() -> None:
    trials = Trials()
    trials.begin(_LEASE, expected_s=1.0, now_s=10.0)
    trials.note_load(_LEASE, 1.0)
    assert trials.affordable_s(10.0) == 0.0
    assert trials.affordable_s(15.0) == pytest.approx(0.05)


def test_what_a_trial_takes_beyond_what_was_expected_is_paid_before_the_next_one() -> None:
    trials = Trials()
    trials.begin(_LEASE, expected_s=0.1, now_s=10.0)
    trials.note_load(LeaseId(2), 5.0)
    trials.note_load(_LEASE, 0.3)
    assert trials.affordable_s(29.0) == 0.0
    assert trials.affordable_s(31.0) == pytest.approx(0.01)
    trials.note_load(_LEASE, 9.0)
    assert trials.affordable_s(31.0) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("page_s", "affordable_s", "num_most", "num_tried"),
    [
        (2.0, 1.9, 0, 0),
        (2.0, 100.0, 50, 1),
        (0.01, 0.031, 3, 3),
        (0.01, 100.0, 64, 5),
        (0.01, math.inf, 64, 5),
        (1e-4, 0.02, 64, 64),
        (0.0, 0.0, 64, 64),
    ],
)
def test_one_page_is_tried_once_it_is_paid_for_and_more_as_long_as_they_are_soon_done(
    page_s: float, affordable_s: float, num_most: int, num_tried: int
) -> None:
    assert num_affordable(64, page_s, affordable_s) == num_most
    assert num_soon_done(num_most, page_s) == num_tried


def test_only_what_was_not_seen_lately_and_may_be_the_cheaper_way_is_tried() -> None:
    loads = TimePredictor(1000.0, full_amount=1000)
    assert loads.is_worth_a_trial(1000, cheap_s=0.6, now_s=0.0)
    assert not loads.is_worth_a_trial(1000, cheap_s=0.4, now_s=0.0), "it was never so quick"
    loads.observe(1000, 1.0, now_s=0.0)
    assert not loads.is_worth_a_trial(1000, cheap_s=0.6, now_s=1.0)
    assert not loads.is_worth_a_trial(50_000, cheap_s=40.0, now_s=1.0), "a full one tells of it"
    assert loads.is_worth_a_trial(1000, cheap_s=0.6, now_s=10.0)
    loads.observe(100, 0.1, now_s=10.0)
    assert loads.is_worth_a_trial(1000, cheap_s=0.6, now_s=10.0), "a small one tells little"
    loads.observe(100, 0.6, now_s=10.0)
    assert not loads.is_worth_a_trial(1000, cheap_s=0.6, now_s=11.0), "a larger one takes longer"
