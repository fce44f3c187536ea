"""Requests whose routing key runs go first, and nobody waits for ever behind them."""

import random
from collections import Counter

import pytest

from raydix.errors import AccountingError
from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.scheduler.queue.routing_turns import RoutingTurns, RunningKeys
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from tests.runtime.scheduler.core_driver import BASE, CoreDriver


def request(serial: int, routing_key: str | None) -> RequestState:
    """One that waits."""
    submit = SubmitRequest(
        asking=AskingId(serial),
        request_id=RequestId(f"r{serial}"),
        token_ids=int32_array([serial] * 8),
        sampling=DeviceSampling(seed=0),
        max_tokens=1,
        routing_key=routing_key,
    )
    return RequestState(
        submit, ClientId("c"), serial=serial, max_tokens=1, page_size=4, now_s=float(serial)
    )


def place(request: RequestState, level: int = 0) -> OrderKey:
    """A place in the order of arrival within a level."""
    return OrderKey(level, 0, 0, request.arrival_s, request.serial)


def turns_of(running: dict[str, int], waiting: list[str | None]) -> list[str | None]:
    """The keys of those that wait in the order of their turns, while the same ones run."""
    keys = RunningKeys()
    for key, count in running.items():
        for _ in range(count):
            keys.add(key)

    turns = RoutingTurns(keys)
    for serial, each in enumerate(waiting):
        new = request(serial, each)
        turns.put(new, place(new))

    order = []
    while (first := turns.first()) is not None:
        order.append(first.submit.routing_key)
        turns.discard(first.request_id)
    return order


def test_keys_that_run_go_first_by_count_then_all_others_by_name() -> None:
    assert turns_of({"a": 3, "b": 1}, ["c", "b", "a"]) == ["a", "b", "c"]
    assert turns_of({"y": 1, "z": 3}, ["d", "y", "c", "z"]) == ["z", "y", "c", "d"]
    assert turns_of({"b": 2, "a": 2}, ["c", "b", "a"]) == ["a", "b", "c"]


def test_arrivals_keep_their_order_while_no_key_runs() -> None:
    assert turns_of({}, ["c", "b", None, "a"]) == ["c", "b", None, "a"]


def test_requests_without_a_key_come_before_other_keys_that_do_not_run() -> None:
    assert turns_of({"z": 1}, ["a", None, "z", None]) == ["z", None, None, "a"]


def test_a_level_goes_before_every_key() -> None:
    keys = RunningKeys()
    keys.add("a")
    turns = RoutingTurns(keys)
    patient, popular = request(1, "b"), request(2, "a")
    turns.put(patient, place(patient, level=0))
    turns.put(popular, place(popular, level=1))
    assert turns.first() is patient


def test_random_use_agrees_with_sorting_all_at_every_turn() -> None:
    draw = random.Random(0)
    keys, running = RunningKeys(), list[str | None]()
    turns, present = RoutingTurns(keys), dict[int, tuple[RequestState, OrderKey]]()
    for step in range(3000):
        action = draw.choice(["put", "put", "discard", "move", "run", "end"])
        serial = draw.choice(list(present)) if present else -1
        if action == "put":
            new = request(step, draw.choice(["a", "b", "c", "d", None]))
            present[step] = new, place(new, draw.randrange(3))
            turns.put(*present[step])
        elif action == "run":
            running.append(draw.choice(["a", "b", "c", None]))
            keys.add(running[-1])
        elif action == "end" and running:
            keys.remove(running.pop(draw.randrange(len(running))))
        elif action == "move" and present:
            present[serial] = present[serial][0], place(present[serial][0], draw.randrange(3))
            turns.put(*present[serial])
        elif action == "discard" and present:
            turns.discard(present.pop(serial)[0].request_id)

        keys.check(running)
        assert turns.first() is _first_by_sorting(list(present.values()), running)
        assert len(turns) == len(present)


def _first_by_sorting(
    waiting: list[tuple[RequestState, OrderKey]], running: list[str | None]
) -> RequestState | None:
    counts = Counter(key for key in running if key is not None)

    def sort_key(entry: tuple[RequestState, OrderKey]) -> tuple[object, ...]:
        key = entry[0].submit.routing_key
        level, _, *arrival = entry[1]
        if not counts:
            return level, *arrival
        count = counts[key] if key is not None else 0
        return level, -count, key or "", *arrival

    return min(waiting, key=sort_key)[0] if waiting else None


def test_check_finds_keys_that_run_no_more() -> None:
    keys = RunningKeys()
    keys.add("a")
    keys.check(["a", None])
    with pytest.raises(AccountingError):
        keys.check([None])


def prompt(number: int) -> list[int]:
    """Shared with nobody."""
    return [number, *range(number, number + 7)]


def routing_driver(ageing_s: float = BASE.ageing_s) -> CoreDriver:
    """Runs two requests at once."""
    return CoreDriver(
        policy=SchedulingPolicy.ROUTING_KEY, max_running_requests=2, ageing_s=ageing_s
    )


def test_core_admits_requests_of_the_key_that_runs_first() -> None:
    driver = routing_driver()
    driver.submit(prompt(0), max_tokens=20, routing_key="b", name="long")
    waiting = ["c", "a", "b", "b"]
    for number, key in enumerate(waiting):
        name = f"{key}{number}"
        driver.submit(prompt(10 + 10 * number), max_tokens=1, routing_key=key, name=name)
    driver.run()
    assert driver.endings == ["b2", "b3", "a1", "c0", "long"]


def test_key_counts_again_after_its_requests_have_ended() -> None:
    driver = routing_driver()
    driver.submit(prompt(0), max_tokens=2, routing_key="b")
    driver.run()
    driver.submit(prompt(10), max_tokens=8, name="no key")
    driver.submit(prompt(20), max_tokens=1, name="first")
    driver.submit(prompt(30), max_tokens=1, routing_key="c", name="c")
    driver.submit(prompt(40), max_tokens=1, routing_key="b", name="b")
    driver.run()
    assert driver.endings.index("c") < driver.endings.index("b"), "b ran long ago"

    driver.submit(prompt(50), max_tokens=12, routing_key="b", name="b again")
    driver.submit(prompt(60), max_tokens=1, name="second")
    driver.submit(prompt(70), max_tokens=1, routing_key="c", name="c again")
    driver.submit(prompt(80), max_tokens=1, routing_key="b", name="b at last")
    driver.run()
    assert driver.endings.index("b at last") < driver.endings.index("c again")


@pytest.mark.parametrize(("ageing_s", "is_overtaken"), [(1.0, False), (1000.0, True)])
def test_popular_key_passes_others_for_no_longer_than_ageing_allows(
    ageing_s: float, *, is_overtaken: bool
) -> None:
    driver = routing_driver(ageing_s=ageing_s)
    driver.submit(prompt(0), max_tokens=4, routing_key="a")
    driver.submit(prompt(0), max_tokens=1, routing_key="z", name="patient")
    num_sent = 1
    while driver.now_s < 3.0:
        # Some of the popular key run, and more of them wait, at any time.
        while num_sent - len(driver.endings) < 6:
            num_sent += 1
            driver.submit(prompt(num_sent % 80), max_tokens=4, routing_key="a")
        driver.step()
    assert ("patient" not in driver.endings) is is_overtaken


def test_preempted_and_aborted_requests_leave_no_key_behind() -> None:
    driver = CoreDriver(policy=SchedulingPolicy.ROUTING_KEY, num_pages=(6,), max_running_requests=4)
    for number in range(4):
        driver.submit(prompt(10 * number), max_tokens=10, routing_key="a", name=f"a{number}")
    driver.step()
    driver.abort("a0")
    driver.run()
    assert sorted(driver.endings) == ["a0", "a1", "a2", "a3"]
