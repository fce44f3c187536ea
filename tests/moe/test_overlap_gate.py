"""The gate: what it predicts from what was measured, and when it opens."""

import pytest

from raydix.moe.overlap_gate import MIN_GAIN, OverlapGate, StepTimes, slowest


def linear(
    tokens: int, *, fixed_us: float, compute_us: float, travel_us: float, overhead_us: float
) -> StepTimes:
    """Steps whose times are linear in their tokens; halves take what is ideal, and an overhead."""

    def compute(num_tokens: float) -> float:
        return fixed_us + compute_us * num_tokens

    halved_us = overhead_us + 2 * max(compute(tokens / 2), travel_us * tokens / 2)
    return StepTimes(
        num_tokens=tokens,
        whole_s=(compute(tokens) + travel_us * tokens) / 1e6,
        communication_s=travel_us * tokens / 1e6,
        halved_s=halved_us / 1e6,
    )


def machine(**figures: float) -> list[StepTimes]:
    return [linear(256 << doublings, **figures) for doublings in range(7)]


BALANCED = machine(fixed_us=500.0, compute_us=2.0, travel_us=1.0, overhead_us=100.0)


def test_the_prediction_is_what_was_measured_where_something_was() -> None:
    for each in BALANCED:
        assert OverlapGate(BALANCED).predicted_halved_s(each.num_tokens) == pytest.approx(
            each.halved_s
        )


def test_between_measurements_the_prediction_is_the_formula() -> None:
    tokens = 3000
    expected_us = 2 * (500 + 2.0 * tokens / 2) + 100

    assert OverlapGate(BALANCED).predicted_halved_s(tokens) * 1e6 == pytest.approx(expected_us)


def test_the_gate_opens_where_halves_begin_to_gain() -> None:
    """Halves hide 1 us a token, and cost 600 us more: their own 100, and 500 a second time."""
    gate = OverlapGate(BALANCED)
    decisions = {tokens: gate.opens(tokens) for tokens in range(512, 16_384, 64)}

    for tokens, is_open in decisions.items():
        whole_us = 500 + 3 * tokens
        assert is_open == (tokens - 600 > MIN_GAIN * whole_us), tokens
    assert set(decisions.values()) == {False, True}


def test_halves_never_pay_if_there_is_little_to_hide() -> None:
    fast = OverlapGate(machine(fixed_us=500.0, compute_us=2.0, travel_us=0.02, overhead_us=100.0))
    assert not any(fast.opens(tokens) for tokens in range(1, 40_000, 777))


def test_contention_keeps_the_gate_closed() -> None:
    """What carries rows slows down what computes: as long as whole steps, measured."""
    slow = [
        StepTimes(
            num_tokens=each.num_tokens,
            whole_s=each.whole_s,
            communication_s=each.communication_s,
            halved_s=each.whole_s,
        )
        for each in BALANCED
    ]
    assert not any(OverlapGate(slow).opens(tokens) for tokens in range(1, 40_000, 777))


def test_what_was_not_measured_stays_whole() -> None:
    assert not OverlapGate([]).opens(10_000)
    free = OverlapGate(machine(fixed_us=0.0, compute_us=1.0, travel_us=1.0, overhead_us=0.0))
    assert not free.opens(511)
    assert free.opens(512)
    assert free.opens(100_000)


def test_efficiency_is_the_part_that_was_hidden() -> None:
    times = StepTimes(num_tokens=1, whole_s=5.0, communication_s=2.0, halved_s=3.5)

    assert times.compute_s == 3.0
    assert times.efficiency == pytest.approx(0.75)


def test_ranks_go_by_the_slowest() -> None:
    one = StepTimes(num_tokens=8, whole_s=5.0, communication_s=1.0, halved_s=3.0)
    other = StepTimes(num_tokens=8, whole_s=4.0, communication_s=2.0, halved_s=6.0)

    both = StepTimes(num_tokens=8, whole_s=5.0, communication_s=2.0, halved_s=6.0)
    assert slowest([[one], [other]]) == slowest([[other], [one]]) == (both,)
