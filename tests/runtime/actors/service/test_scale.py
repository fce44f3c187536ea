"""How many engines a service is to have."""

import math
from dataclasses import replace

import pytest

from raydix.runtime.actors.service.scale import (
    EngineLoad,
    Pace,
    Scale,
    Scaler,
    ScaleRule,
    ServiceLoad,
    next_scale,
)

RULE = ScaleRule(fewest=1, most=3, wait_s=2.0, crowded_s=5.0, idle_s=60.0, full_fraction=0.5)
QUIET = ServiceLoad(num_serving=1, num_running=0, num_waiting=0, begun_per_s=0.0, num_slots=8)


def crowd(num_serving: int) -> ServiceLoad:
    return replace(QUIET, num_serving=num_serving, num_running=8, num_waiting=9, begun_per_s=3.0)


def after(scale: Scale, load: ServiceLoad, seconds: range) -> Scale:
    for now_s in seconds:
        scale = next_scale(scale, load, RULE, float(now_s))
    return scale


@pytest.mark.parametrize(
    ("waiting", "per_s", "wait_s"), [(0, 0.0, 0.0), (6, 3.0, 2.0), (6, 0.0, math.inf)]
)
def test_the_wait_is_what_is_queued_over_the_rate(
    waiting: int, per_s: float, wait_s: float
) -> None:
    assert replace(QUIET, num_waiting=waiting, begun_per_s=per_s).wait_s == wait_s


def test_one_more_starts_once_requests_would_wait_too_long_for_a_while() -> None:
    scale = after(Scale(num_wanted=1), crowd(1), range(5))
    assert scale.num_wanted == 1
    assert after(scale, crowd(1), range(5, 6)).num_wanted == 2


def test_a_short_crowd_changes_nothing() -> None:
    scale = Scale(num_wanted=1)
    for begin in range(0, 40, 4):
        scale = after(scale, crowd(1), range(begin, begin + 3))
        scale = after(scale, replace(QUIET, num_running=8), range(begin + 3, begin + 4))
    assert scale.num_wanted == 1


def test_nothing_changes_before_the_engine_that_was_added_serves() -> None:
    scale = after(Scale(num_wanted=2), crowd(1), range(100))
    assert scale == Scale(num_wanted=2)
    assert after(scale, crowd(2), range(100, 106)).num_wanted == 3
    assert after(Scale(num_wanted=3), crowd(3), range(100)).num_wanted == 3


def test_one_ends_once_the_others_could_hold_all_for_long() -> None:
    light = replace(QUIET, num_serving=3, num_running=8)
    assert after(Scale(num_wanted=3), light, range(60)).num_wanted == 3
    assert after(Scale(num_wanted=3), light, range(61)).num_wanted == 2
    # Two engines have 16 slots, of which half may be taken; one has 8.
    assert after(Scale(num_wanted=3), replace(light, num_running=9), range(200)).num_wanted == 3
    assert after(Scale(num_wanted=2), replace(light, num_serving=2), range(200)).num_wanted == 2
    assert after(Scale(num_wanted=1), QUIET, range(200)).num_wanted == 1


def test_none_ends_while_an_engine_does_not_say_what_it_has_to_do() -> None:
    scaler = Scaler(RULE, num_slots=8)
    scaler.begin_with(2)
    idle = EngineLoad(num_waiting=0, num_running=0, num_begun=0)
    for now_s in range(100):
        scaler.note({"a": idle}, 2, float(now_s))
    assert scaler.num_wanted == 2
    for now_s in range(100, 161):
        scaler.note({"a": idle, "b": idle}, 2, float(now_s))
    assert scaler.num_wanted == 1


def test_what_lets_one_start_never_lets_one_end() -> None:
    """The same load, at two and three engines, leads to no circle."""
    for running in range(30):
        for waiting in (0, 1, 20):
            load = replace(
                QUIET, num_running=running, num_waiting=waiting, begun_per_s=1.0, num_serving=2
            )
            more = after(Scale(num_wanted=2), load, range(200)).num_wanted > 2
            fewer = (
                after(Scale(num_wanted=3), replace(load, num_serving=3), range(200)).num_wanted < 3
            )
            assert not (more and fewer)


def test_an_engine_that_no_node_has_room_for_is_not_wanted_for_ever() -> None:
    light = replace(QUIET, num_serving=2, num_running=4)
    assert after(Scale(num_wanted=3), light, range(61)).num_wanted == 2
    assert after(Scale(num_wanted=3), replace(light, num_serving=0), range(200)).num_wanted == 3


def test_a_number_outside_of_the_bounds_is_put_right_at_once() -> None:
    assert next_scale(Scale(num_wanted=9), QUIET, RULE, 0.0).num_wanted == 3
    assert next_scale(Scale(num_wanted=0), QUIET, RULE, 0.0).num_wanted == 1


def test_the_rate_is_that_of_the_last_seconds_of_engines_that_are_there() -> None:
    pace = Pace(window_s=10.0)

    def note(now_s: float, **begun: int) -> float:
        loads = {
            name: EngineLoad(num_waiting=0, num_running=0, num_begun=number)
            for name, number in begun.items()
        }
        pace.note(loads, now_s)
        return pace.begun_per_s()

    assert note(0.0, a=0) == 0.0
    assert note(5.0, a=50, b=100) == 10.0
    assert note(10.0, a=50, b=110) == 5.0 + 2.0
    assert note(20.0, b=110) == 0.0
    assert note(21.0, b=3) == 0.0
    assert note(22.0, b=5) == 2.0
