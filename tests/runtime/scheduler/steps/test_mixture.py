"""How many prompt tokens a step takes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.scheduler.steps.mixture import StepTimes, shared_tokens, tokens_beside_decodes

TIMES = StepTimes(decodes_s=0.0025, mixed_s=0.0035, token_s=7e-6)
"""The times of 14 decodes of a small model on an H200."""

_seconds = st.floats(1e-6, 10.0)
_times = st.builds(StepTimes, decodes_s=_seconds, mixed_s=_seconds, token_s=_seconds)
_slowdowns = st.floats(1.0, 1000.0)


def step_s(times: StepTimes, num_tokens: float) -> float:
    """What a step with so many prompt tokens takes."""
    return times.mixed_s + num_tokens * times.token_s


def test_a_step_takes_at_most_so_many_times_as_long_as_its_decodes() -> None:
    most = tokens_beside_decodes(TIMES, num_decodes=14, num_prompts=3, max_slowdown=8.0)
    assert math.isclose(step_s(TIMES, most), 8 * TIMES.decodes_s)


def test_a_step_may_take_for_tokens_what_it_takes_without_them() -> None:
    dear = StepTimes(decodes_s=0.008, mixed_s=0.09, token_s=1e-5)
    most = tokens_beside_decodes(dear, num_decodes=32, num_prompts=3, max_slowdown=12.0)
    assert math.isclose(step_s(dear, most), 0.18)


def test_without_decodes_nothing_bounds_a_step() -> None:
    most = tokens_beside_decodes(TIMES, num_decodes=0, num_prompts=3, max_slowdown=1.0)
    assert most == math.inf


def test_a_step_grows_with_those_who_wait_once_they_are_more_than_those_who_decode() -> None:
    few, as_many, twice = (
        tokens_beside_decodes(TIMES, num_decodes=4, num_prompts=num, max_slowdown=8.0)
        for num in (1, 4, 8)
    )
    assert few == as_many
    assert math.isclose(step_s(TIMES, twice) - TIMES.decodes_s, 14 * TIMES.decodes_s)


@given(times=_times, slowdown=_slowdowns, decodes=st.integers(1, 512), prompts=st.integers(0, 512))
def test_prompts_never_starve(
    times: StepTimes, slowdown: float, decodes: int, prompts: int
) -> None:
    most = tokens_beside_decodes(
        times, num_decodes=decodes, num_prompts=prompts, max_slowdown=slowdown
    )
    assert most >= 512
    assert shared_tokens(times, 0) >= 512


@given(times=_times, slowdowns=st.tuples(_slowdowns, _slowdowns), decodes=st.integers(1, 512))
def test_more_slowdown_never_means_fewer_tokens(
    times: StepTimes, slowdowns: tuple[float, float], decodes: int
) -> None:
    less, more = (
        tokens_beside_decodes(times, num_decodes=decodes, num_prompts=1, max_slowdown=slowdown)
        for slowdown in sorted(slowdowns)
    )
    assert less <= more


@given(times=_times, waiting=st.integers(1, 10**6), factor=st.floats(0.1, 10.0))
def test_prompts_share_steps_of_the_size_with_which_they_end_soonest(
    times: StepTimes, waiting: int, factor: float
) -> None:
    def mean_end_s(num_tokens: float) -> float:
        one_s = step_s(times, num_tokens)
        return (waiting / num_tokens) * one_s / 2 + one_s / 2

    shared = shared_tokens(times, waiting)

    if shared > 512:
        assert mean_end_s(shared) <= mean_end_s(shared * factor) * (1 + 1e-9)
