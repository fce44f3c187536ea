"""Waiting requests whose lane loses its ranks get another place, a few per event."""

from typing import Any

import pytest

from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life.transitions import Transitions
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

NUM_WAITING = 200


def crowded(num_waiting: int = NUM_WAITING, **changes: Any) -> CoreDriver:
    """Two lanes, on each of which one request runs and many wait."""
    driver = CoreDriver(
        num_lanes=2, max_running_requests=1, max_waiting_requests=1000, num_pages=(64,), **changes
    )
    for number in range(num_waiting):
        driver.submit([number, *range(8)], max_tokens=1)
    return driver


def places_by_event(driver: CoreDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each event from now on gives a lane; the list grows."""
    counts: list[int] = []
    handle, place = driver.core.handle, Transitions.place

    def count(*arguments: Any) -> None:
        counts[-1] += 1
        place(*arguments)

    def start(event: events.Event, now_s: float) -> list[events.Effect]:
        counts.append(0)
        return handle(event, now_s)

    monkeypatch.setattr(Transitions, "place", count)
    monkeypatch.setattr(driver.core, "handle", start)
    return counts


@pytest.mark.parametrize("num_lost", [1, 2])
def test_no_event_places_all_that_waited_on_a_lost_lane(
    monkeypatch: pytest.MonkeyPatch, num_lost: int
) -> None:
    driver = crowded()
    counts = places_by_event(driver, monkeypatch)
    for rank in range(num_lost):
        driver.lose_rank(rank)
    driver.wait(0.0)
    assert max(counts) <= 32
    assert sum(counts) >= NUM_WAITING // 2
    assert driver.core.stats()["num_requests_waiting"] + driver.core.stats()[
        "num_requests_running"
    ] == len(driver.core._requests.living)

    for rank in range(num_lost):
        driver.attach_rank(rank, incarnation=2)
    driver.wait(0.0)
    driver.run()
    assert max(counts) <= 32
    assert [answer.ending for answer in driver.answers.values()] == ["length"] * NUM_WAITING


def test_an_event_places_fewer_requests_of_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CoreDriver(
        num_lanes=2, page_size=1, num_pages=(8192,), max_running_requests=1, max_model_len=8192
    )
    for number in range(20):
        driver.submit([number, *range(4095)], max_tokens=1)
    driver.wait(0.0)
    counts = places_by_event(driver, monkeypatch)
    driver.lose_rank(0)
    driver.wait(0.0)
    assert sum(counts) == 10
    # Each is looked for on two lanes.
    assert max(counts) == 2


def test_whose_turn_was_next_gets_a_lane_first() -> None:
    driver = crowded()
    urgent = driver.submit([1, 2, 3], max_tokens=1, priority=-5)
    core = driver.core
    driver.lose_rank(core._requests.living[urgent].lane)
    assert core._requests.unplaced
    assert any(urgent in lane.waiting.requests for lane in core._lanes if lane.is_attached)


def test_requests_without_a_lane_end_as_others_do() -> None:
    driver = crowded()
    driver.lose_rank(0)
    driver.lose_rank(1)
    name = next(reversed(driver.core._requests.unplaced))
    driver.abort(name)
    assert driver.answers[name].ending == "abort"
    driver.send(events.ClientGone(client_id=CLIENT))
    assert not driver.core._requests.unplaced
    assert driver.core.is_idle


def test_a_report_that_l2_had_no_room_finds_a_request_without_a_lane() -> None:
    driver = crowded(num_waiting=100, has_host_memory=True, prefill_budget_tokens=8)
    driver.lose_rank(0)
    driver.lose_rank(1)
    name = next(reversed(driver.core._requests.unplaced))
    driver.report_lookup(name, [PageSource.NO_HOST_PAGE] * 2)
    assert name in driver.core._requests.unplaced, "it is looked up anew once it has a lane"

    for rank in range(2):
        driver.attach_rank(rank, incarnation=2)
    for _ in range(20):
        driver.run()
        driver.wait(5.0)
    assert [answer.ending for answer in driver.answers.values()] == ["length"] * 100
