"""What the predictors learn from what they observe."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.routing.predictors import TimePredictor


def test_before_anything_is_observed_the_start_rate_holds() -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    assert predictor.predict_s(2048, 0.0) == pytest.approx(2048 / 20_000)
    assert predictor.predict_s(100_000, 0.0) == pytest.approx(5.0)
    assert predictor.predict_s(0, 0.0) == 0.0


def test_many_small_steps_say_little_about_the_time_per_token() -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    for _ in range(20):
        predictor.observe(16, 0.02, now_s=1.0)  # 800 a second: all of it is the overhead of a step
    assert predictor.predict_s(16, 1.0) == pytest.approx(0.02, rel=0.2)
    assert predictor.predict_s(20_480, 1.0) == pytest.approx(1.0, rel=0.25)


def test_large_observations_are_learned_from_within_a_few() -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    for _ in range(10):
        predictor.observe(2048, 0.2048, now_s=1.0)
    assert predictor.predict_s(2048, 1.0) == pytest.approx(0.2048, rel=0.1)


def test_small_and_large_observations_are_both_predicted() -> None:
    draw = random.Random(0)
    predictor = TimePredictor(10e9, full_amount=20e6)
    for _ in range(200):
        amount = draw.choice([64e3, 1e6, 100e6])
        predictor.observe(amount, 0.001 + amount / 50e9, now_s=1.0)
    for amount in (64e3, 1e6, 100e6, 1e9):
        assert predictor.predict_s(amount, 1.0) == pytest.approx(0.001 + amount / 50e9, rel=0.3)


def test_many_of_one_size_do_not_make_what_another_size_takes_forgotten() -> None:
    predictor = TimePredictor(50_000.0, full_amount=2048)
    for amount in (256, 2048) * 5:
        predictor.observe(amount, 0.02 + amount * 1e-5, now_s=1.0)
    for _ in range(1000):
        predictor.observe(512, 0.02 + 512 * 1e-5, now_s=1.0)
    fixed_s, slope = predictor.line(1.0)
    assert fixed_s == pytest.approx(0.02, rel=0.2)
    assert slope == pytest.approx(1e-5, rel=0.5)


@pytest.mark.parametrize("amount", [2048, 4096, 8192])
@pytest.mark.parametrize("fixed_s", [0.005, 0.02])
def test_pieces_of_one_size_are_likely_to_take_half_as_long_by_halves(
    amount: int, fixed_s: float
) -> None:
    # 20 times as slow as was believed at the start: else a hit on half of a prompt saves nothing.
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for _ in range(20):
        predictor.observe(amount, fixed_s + amount * 1e-4, now_s=1.0)
    likely = predictor.likely_line(1.0)
    for part in (0.5, 1.0, 2.0):
        true_s = fixed_s + part * amount * 1e-4
        assert likely.predict_s(part * amount) == pytest.approx(true_s, rel=0.25)


def test_pieces_of_one_size_that_are_small_are_put_down_to_fixed_time() -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for _ in range(20):
        predictor.observe(64, 0.02, now_s=1.0)
    fixed_s, unit_s = predictor.likely_line(1.0)
    assert fixed_s == pytest.approx(0.02, rel=0.1)
    assert unit_s == pytest.approx(1 / 200_000, rel=0.5)


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.floats(1e-5, 10.0)), max_size=30),
    st.floats(0.0, 200.0),
)
def test_neither_part_of_a_likely_line_is_below_zero(
    pieces: list[tuple[int, float]], idle_s: float
) -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for amount, seconds in pieces:
        predictor.observe(amount, seconds, now_s=1.0)
    fixed_s, unit_s = predictor.likely_line(1.0 + idle_s)
    assert fixed_s >= 0.0
    assert unit_s > 0.0


def test_pieces_of_two_sizes_leave_nothing_to_what_is_likely() -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for amount in (1024, 4096) * 20:
        predictor.observe(amount, 0.03 + amount * 1e-4, now_s=1.0)
    for line in (predictor.line(1.0), predictor.likely_line(1.0)):
        assert line.unit_s == pytest.approx(1e-4, rel=0.1)
        assert line.fixed_s == pytest.approx(0.03, rel=0.2)


def test_a_change_is_learned_from_one_size_alone() -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    for amount in (256, 2048) * 50:
        predictor.observe(amount, 0.02 + amount * 1e-5, now_s=1.0)
    for _ in range(30):
        predictor.observe(512, 0.1, now_s=1.0)
    assert predictor.predict_s(512, 1.0) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("sizes", [(2048, 16), (8192, 64), (512, 2048, 512), (16, 4096, 16)])
@pytest.mark.parametrize(("fixed_s", "slope_s"), [(0.006, 5e-5), (0.02, 1e-4), (0.025, 1e-6)])
def test_sizes_that_take_turns_are_both_learned(
    sizes: tuple[int, ...], fixed_s: float, slope_s: float
) -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for amount in sizes * 30:
        predictor.observe(amount, fixed_s + amount * slope_s, now_s=1.0)
    for amount in sizes:
        assert predictor.predict_s(amount, 1.0) == pytest.approx(
            fixed_s + amount * slope_s, rel=0.3
        )


@pytest.mark.parametrize("amount", [64e3, 1e6, 100e6])
@pytest.mark.parametrize("ratio", [2.5, 10.0, 100.0])
def test_loads_that_become_slow_for_good_are_expected_to_be_slow_soon(
    amount: float, ratio: float
) -> None:
    predictor = TimePredictor(50e9, full_amount=100e6)
    quick_s = 0.001 + amount / 10e9
    for _ in range(3000):
        predictor.observe(amount, quick_s, now_s=1.0)
    for _ in range(40):
        predictor.observe(amount, ratio * quick_s, now_s=1.0)
    assert predictor.predict_s(amount, 1.0) == pytest.approx(ratio * quick_s, rel=0.2)


def test_what_large_pieces_take_is_kept_while_small_ones_are_held_up() -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192, fixed_s=0.005)
    for amount in (16, 8192) * 30:
        predictor.observe(amount, 0.01 + amount * 1e-4, now_s=1.0)
    for seconds in (0.05, 0.05, 0.05, 0.05, 0.0116, 0.0116, 0.0116):
        predictor.observe(16, seconds, now_s=1.0)
    assert predictor.predict_s(8192, 1.0) == pytest.approx(0.83, rel=0.2)


def test_slow_small_loads_are_expected_to_be_slow() -> None:
    predictor = TimePredictor(10e9, full_amount=20e6)
    for _ in range(40):
        predictor.observe(32e3, 0.025, now_s=1.0)
    assert predictor.predict_s(32e3, 1.0) > 0.02


def test_what_was_observed_is_forgotten_and_the_next_observation_does_not_bring_it_back() -> None:
    predictor = TimePredictor(20_000.0, full_amount=100)
    for _ in range(50):
        predictor.observe(100, 1.0, now_s=0.0)
    late_s = 600.0
    before_s = predictor.predict_s(100, late_s)
    assert before_s == pytest.approx(100 / 20_000, rel=0.01)
    predictor.observe(1, 1 / 20_000, now_s=late_s)
    assert predictor.predict_s(100, late_s) == pytest.approx(before_s, rel=0.05)


def test_predictions_are_positive_and_grow_whatever_was_observed() -> None:
    draw = random.Random(1)
    predictor = TimePredictor(1000.0, full_amount=64)
    for step in range(500):
        predictor.observe(
            draw.choice([1, 5, 64, 3000]), draw.choice([2e-6, 1e-3, 0.5, 20.0]), now_s=step
        )
        times = [predictor.predict_s(amount, step) for amount in (1, 10, 100, 10_000)]
        assert times[0] > 0
        assert times == sorted(times)
        assert predictor.rate(step) > 0


def test_one_observation_that_was_held_up_is_soon_made_up_for() -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    for _ in range(10):
        predictor.observe(512, 0.0256, now_s=1.0)
    predictor.observe(512, 30.0, now_s=1.0)
    for _ in range(20):
        predictor.observe(512, 0.0256, now_s=1.0)
    assert predictor.predict_s(512, 1.0) == pytest.approx(0.0256, rel=0.2)


@pytest.mark.parametrize("amount", [100, 512, 2048])
def test_what_was_held_up_once_or_twice_teaches_nothing(amount: int) -> None:
    predictor = TimePredictor(100_000.0, full_amount=2048)
    for _ in range(10):
        predictor.observe(512, 0.0256, now_s=1.0)
    before = predictor.line(1.0)
    for _ in range(2):
        predictor.observe(amount, 30.0, now_s=1.0)
    assert predictor.line(1.0) == before
    for _ in range(3):
        predictor.observe(amount, 30.0, now_s=1.0)
    assert predictor.predict_s(amount, 1.0) > 5.0, "it is really so slow"


def test_three_that_were_held_up_are_forgotten_as_soon_as_something_is_quick() -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192)
    for amount, seconds in ((2048, 2.0), (1900, 1.0), (700, 0.5)):
        predictor.observe(amount, seconds, now_s=1.0)
    draw = random.Random(0)
    for _ in range(100):
        amount = draw.randint(200, 2048)
        predictor.observe(amount, 0.003 + amount * 5e-6, now_s=1.0)
    assert predictor.predict_s(1024, 1.0) == pytest.approx(0.0081, rel=0.1)


@pytest.mark.parametrize("idle_s", [0.0, 600.0, 21_000.0, 21_500.0, 22_000.0, 22_500.0, 1e7])
def test_after_any_idle_time_the_next_observations_are_learned_from(idle_s: float) -> None:
    predictor = TimePredictor(100_000.0, full_amount=2048)
    for now_s in (0.0, idle_s):
        for _ in range(10):
            predictor.observe(512, 0.0256, now_s=now_s)
    assert predictor.predict_s(512, idle_s) == pytest.approx(0.0256, rel=0.1)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0])
def test_what_is_no_duration_teaches_nothing(seconds: float) -> None:
    predictor = TimePredictor(20_000.0, full_amount=2048)
    before = predictor.line(1.0)
    for _ in range(3):
        predictor.observe(2048, seconds, now_s=1.0)
    assert predictor.line(1.0) == before


@pytest.mark.parametrize("part", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("sizes", [(1e9,), (1e9, 1e7)])
def test_one_quick_piece_refutes_that_others_are_slow(part: float, sizes: tuple[float]) -> None:
    predictor = TimePredictor(50e9, full_amount=100e6)
    for amount in sizes * 60:
        predictor.observe(amount, 200 * amount / 50e9, now_s=1.0)
    assert predictor.predict_s(1e9, 1.0) > 3.0
    predictor.observe(part * 1e9, part * 1e9 / 50e9, now_s=2.0)
    assert predictor.predict_s(1e9, 2.0) < 0.1


def test_a_quick_large_piece_refutes_that_small_ones_are_slow() -> None:
    predictor = TimePredictor(200_000.0, full_amount=8192)
    for _ in range(20):
        predictor.observe(16, 1.0, now_s=1.0)
    for _ in range(20):
        predictor.observe(8192, 0.05, now_s=1.0)
    assert predictor.predict_s(16, 1.0) < 0.1


def given_up(waited_s: float = 0.1, num: int = 6) -> TimePredictor:
    """A predictor of pieces of 100 MB, of which so many were given up; 10 ms are believed first."""
    predictor = TimePredictor(10e9, full_amount=20e6)
    for _ in range(num):
        predictor.observe_at_least(100e6, waited_s, now_s=1.0)
    return predictor


def test_what_is_always_given_up_is_believed_to_take_longer_than_it_was_waited_for() -> None:
    predictor = given_up(0.1)
    assert 0.1 < predictor.predict_s(100e6, 1.0) < 0.3


def test_one_piece_that_is_given_up_is_an_accident() -> None:
    assert given_up(num=1).predict_s(100e6, 1.0) == pytest.approx(0.01)


def test_what_was_given_up_says_nothing_to_who_believes_that_it_takes_longer() -> None:
    predictor = given_up(0.1)
    believed = predictor.line(1.0)
    predictor.observe_at_least(100e6, 0.05, now_s=1.0)
    assert predictor.line(1.0) == believed

    predictor.observe_at_least(100e6, 0.05, now_s=31.0)
    assert predictor.predict_s(100e6, 400.0) < 0.03, "it fades all the same"


def test_one_quick_piece_refutes_what_was_given_up() -> None:
    predictor = given_up(0.1)
    predictor.observe(100e6, 0.01, now_s=1.0)
    assert predictor.predict_s(100e6, 1.0) < 0.03
