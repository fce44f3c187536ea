"""The gate: when it opens, by what was measured."""

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


def test_the_gate_opens_at_the_size_from_which_halves_gain() -> None:
    """Halves hide 1 us a token, and cost 600 us more: their own 100, and 500 a second time."""
    first = min(
        each.num_tokens for each in BALANCED if each.halved_s <= (1 - MIN_GAIN) * each.whole_s
    )
    gate = OverlapGate(BALANCED)

    assert BALANCED[0].num_tokens < first < BALANCED[-1].num_tokens
    assert [gate.opens(tokens) for tokens in (first - 1, first, 100_000)] == [False, True, True]


def test_one_size_that_seems_to_gain_below_others_that_do_not_opens_nothing() -> None:
    fast = machine(fixed_us=500.0, compute_us=2.0, travel_us=0.02, overhead_us=100.0)
    lucky = StepTimes(
        num_tokens=fast[1].num_tokens,
        whole_s=fast[1].whole_s,
        communication_s=fast[1].communication_s,
        halved_s=0.5 * fast[1].whole_s,
    )
    gate = OverlapGate([fast[0], lucky, *fast[2:]])

    assert not any(gate.opens(tokens) for tokens in range(1, 40_000, 777))


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
    assert not free.opens(255)
    assert free.opens(256)
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
