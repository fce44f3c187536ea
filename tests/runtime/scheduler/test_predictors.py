"""What the rates learn from what they observe."""

import pytest

from raydix.runtime.scheduler.predictors import RatePredictor


def test_many_small_observations_weigh_no_more_than_what_they_add_up_to() -> None:
    rate = RatePredictor(20_000.0, full_amount=2048)
    for _ in range(20):
        rate.observe(16, 0.02, now_s=1.0)  # 800 a second: all of it is the overhead of a step
    assert rate.rate(1.0) > 18_000


def test_large_observations_are_learned_from_within_a_few() -> None:
    rate = RatePredictor(20_000.0, full_amount=2048)
    for _ in range(10):
        rate.observe(2048, 0.2048, now_s=1.0)
    assert rate.rate(1.0) == pytest.approx(10_000, rel=0.05)


def test_an_observation_after_a_long_time_starts_from_the_forgotten_rate() -> None:
    rate = RatePredictor(20_000.0, full_amount=100)
    for _ in range(50):
        rate.observe(100, 1.0, now_s=0.0)
    late_s = 600.0
    before = rate.rate(late_s)
    assert before == pytest.approx(20_000, rel=0.01)
    rate.observe(1, 1.0, now_s=late_s)
    assert rate.rate(late_s) == pytest.approx(before, rel=0.01)
