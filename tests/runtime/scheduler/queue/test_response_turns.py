"""Who has waited longest for its size goes first, and nobody waits for ever behind the short."""

import random

import pytest

from raydix.runtime.scheduler.queue.response_turns import (
    ResponseTurns,
    size_class,
    wait_per_token,
)
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from tests.runtime.scheduler.queue.test_waiting import request


def place(request: RequestState, level: int = 0) -> OrderKey:
    """A place in the order of arrival within a level."""
    return OrderKey(level, 0, 0, request.arrival_s, request.serial)


def test_short_ones_go_first_until_a_long_one_has_waited_long_enough() -> None:
    turns = ResponseTurns()
    long, short = request(1, arrival_s=0.0), request(2, arrival_s=9.0)
    turns.put(long, place(long), 1000)
    turns.put(short, place(short), 100)

    assert turns.first(9.5) is long, "9.5 s for 1000 tokens, 0.5 s for 100"
    assert turns.first(10.5) is short, "10.5 s for 1000 tokens, 1.5 s for 100"


def test_of_those_that_have_just_come_the_shortest_goes_first() -> None:
    turns = ResponseTurns()
    long, short = request(1), request(2)
    turns.put(long, place(long), 1000)
    turns.put(short, place(short), 100)
    assert turns.first(0.0) is short


def test_a_level_goes_before_every_ratio() -> None:
    turns = ResponseTurns()
    patient, quick = request(1), request(2)
    turns.put(patient, place(patient, level=0), 10_000)
    turns.put(quick, place(quick, level=1), 1)
    assert turns.first(100.0) is patient


def test_one_size_is_one_class_and_twice_as_many_tokens_are_four_classes_on() -> None:
    assert size_class(1) == 0
    assert size_class(2048) - size_class(1024) == 4
    assert wait_per_token(2.0, 4) == pytest.approx(0.5)


def test_random_use_never_strays_further_from_the_highest_ratio_than_a_class_is_wide() -> None:
    draw = random.Random(0)
    turns, present = ResponseTurns(), dict[int, tuple[RequestState, int, int]]()
    now_s = 0.0
    for step in range(3000):
        now_s += draw.expovariate(10.0)
        action = draw.choice(["put", "put", "move", "discard"])
        serial = draw.choice(list(present)) if present else -1
        if action == "put":
            present[step] = (
                request(step, arrival_s=now_s),
                draw.randrange(2),
                draw.randrange(1, 500),
            )
            turns.put(present[step][0], place(present[step][0], present[step][1]), present[step][2])
        elif action == "move" and present:
            present[serial] = (*present[serial][:2], draw.randrange(1, 500))
            turns.put(
                present[serial][0],
                place(present[serial][0], present[serial][1]),
                present[serial][2],
            )
        elif action == "discard" and present:
            turns.discard(present.pop(serial)[0].request_id)
        assert len(turns) == len(present)

        chosen = turns.first(now_s)
        if chosen is None:
            assert not present
            continue
        level = min(entry[1] for entry in present.values())
        ratios = {
            entry[0].serial: wait_per_token(now_s - entry[0].arrival_s, entry[2])
            for entry in present.values()
            if entry[1] == level
        }
        assert ratios[chosen.serial] * 2**0.25 >= max(ratios.values()) * (1 - 1e-9)
