"""When requests are sent."""

from itertools import pairwise

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.load.arrivals import (
    ClosedLoop,
    OpenLoop,
    choose_load,
    measured_alone,
    poisson_arrivals,
)
from raydix.runtime.cli.load.requests import Conversations, LoadRequest

ASKED_NOTHING = {"rate_per_s": None, "max_concurrent": None, "speed": None, "seed": 0}


def requests_at(*times_s: float | None) -> tuple[LoadRequest, ...]:
    return tuple(LoadRequest(prompt="x", output_tokens=1, arrival_s=time_s) for time_s in times_s)


def test_random_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    times_s = poisson_arrivals(20_000, rate_per_s=4.0, seed=1)
    gaps_s = [after - before for before, after in pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    variance = sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)
    assert times_s[0] == 0.0
    assert mean_s == pytest.approx(0.25, rel=0.03)
    assert variance**0.5 == pytest.approx(0.25, rel=0.05)


def test_a_seed_fixes_the_arrivals() -> None:
    assert poisson_arrivals(5, 1.0, seed=3) == poisson_arrivals(5, 1.0, seed=3)
    assert poisson_arrivals(5, 1.0, seed=3) != poisson_arrivals(5, 1.0, seed=4)


def test_a_trace_keeps_its_arrivals_from_its_first_one_on() -> None:
    load = choose_load(requests_at(7.0, 8.0, 11.0), **ASKED_NOTHING)
    assert load == OpenLoop(arrivals_s=(0.0, 1.0, 4.0))
    load = choose_load(requests_at(7.0, 8.0, 11.0), **{**ASKED_NOTHING, "speed": 2.0})
    assert load == OpenLoop(arrivals_s=(0.0, 0.5, 2.0), speed=2.0)


def test_what_is_asked_for_counts_more_than_the_trace() -> None:
    requests = requests_at(0.0, 1.0)
    closed = choose_load(requests, **{**ASKED_NOTHING, "max_concurrent": 3})
    assert closed == ClosedLoop(max_concurrent=3)
    at_random = choose_load(requests, **{**ASKED_NOTHING, "rate_per_s": 5.0})
    assert at_random == OpenLoop(arrivals_s=poisson_arrivals(2, 5.0, 0))


def test_without_arrivals_the_loop_is_closed() -> None:
    assert isinstance(choose_load(requests_at(0.0, None), **ASKED_NOTHING), ClosedLoop)


@pytest.mark.parametrize(
    "asked",
    [
        {"rate_per_s": 1.0, "max_concurrent": 4},
        {"rate_per_s": 1.0, "speed": 4.0},
        {"speed": 2.0},
    ],
)
def test_a_contradiction_is_refused(asked: dict[str, float]) -> None:
    with pytest.raises(BadRequest, match="--rate"):
        choose_load(requests_at(None), **{**ASKED_NOTHING, **asked})


def test_what_is_measured_can_be_sent_alone() -> None:
    chats = Conversations(
        num_conversations=2, num_turns=2, prompt_tokens=8, turn_tokens=2, output_tokens=2
    )
    requests = chats.requests()
    alone, load = measured_alone(requests, OpenLoop(arrivals_s=(0.0, 1.0, 4.0, 9.0)))
    assert [each.prompt for each in alone] == [each.prompt for each in requests[2:]]
    assert all(each.after is None for each in alone)
    assert load == OpenLoop(arrivals_s=(0.0, 5.0))
