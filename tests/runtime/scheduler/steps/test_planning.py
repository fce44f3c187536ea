"""How many steps are in flight at a time."""

import pytest

from tests.runtime.scheduler.core_driver import CoreDriver

QUICK_S = 0.0005
SLOW_S = 0.002


def decoding(seconds: float) -> CoreDriver:
    """A request decodes, in steps that take so long."""
    driver = CoreDriver()
    driver.submit([1, 2, 3], max_tokens=100)
    for _ in range(20):
        driver.step(seconds=seconds)
    return driver


def test_two_steps_are_in_flight_and_three_if_a_turn_takes_longer_than_a_step() -> None:
    assert len(decoding(SLOW_S).plans[0]) == 2
    assert len(decoding(QUICK_S).plans[0]) == 3


@pytest.mark.parametrize("num_requests", [1, 2, 8])
def test_short_steps_are_known_as_such_with_every_slot_taken(num_requests: int) -> None:
    driver = CoreDriver(max_running_requests=num_requests, num_pages=(400,))
    for index in range(num_requests):
        driver.submit([1, 2, 3 + index], max_tokens=90)
    for _ in range(40):
        driver.step(seconds=0.0011)
    assert len(driver.plans[0]) == 3


@pytest.mark.parametrize("max_running_requests", [8, 64, 256])
def test_a_third_step_is_not_sent_until_steps_were_seen_to_be_short(
    max_running_requests: int,
) -> None:
    driver = CoreDriver(max_running_requests=max_running_requests)
    for _ in range(2):
        driver.submit([1, 2, 3], max_tokens=50)
        while driver.plans[0]:
            assert len(driver.plans[0]) <= 2
            driver.step(seconds=0.03)
        # Hours later what was learned is forgotten.
        driver.wait(10_000.0)


def test_a_third_step_is_not_sent_once_steps_have_become_slow() -> None:
    driver = decoding(QUICK_S)
    for _ in range(20):
        driver.step(seconds=SLOW_S)
    assert len(driver.plans[0]) == 2


def test_a_third_step_is_not_sent_behind_a_long_one_however_short_the_second_is() -> None:
    driver = CoreDriver(num_pages=(400,), prefill_budget_tokens=64)
    driver.submit([1, 2, 3], max_tokens=90)
    for _ in range(20):
        driver.step(seconds=QUICK_S)
    for index in range(7):
        driver.submit([100 * index, 1, 2], max_tokens=20)
    # Eight rows take long, and it is known beforehand when all but one of them end.
    in_flight: list[list[int]] = []
    while driver.plans[0]:
        driver.step(seconds=SLOW_S if len(driver.plans[0][0].row_slots) > 1 else QUICK_S)
        in_flight.append([len(plan.row_slots) for plan in driver.plans[0]])
    last = in_flight.index([8, 1])
    assert in_flight[last + 1] == [1, 1, 1]


@pytest.mark.parametrize("with_prompt", [0, 1])
def test_a_third_step_is_not_sent_behind_a_prompt_of_any_lane(with_prompt: int) -> None:
    driver = CoreDriver(num_lanes=2, lanes_per_group=2)

    def step() -> None:
        for lane in range(2):
            driver.step(lane, seconds=QUICK_S)

    # Steps of many rows are known to be short, too.
    for index in range(15):
        driver.submit([100 * index, 1, 2], max_tokens=20)
    while driver.plans[0]:
        step()
    for index in range(2):
        driver.submit([2000 + index, 1, 2], max_tokens=90)
    for _ in range(20):
        step()
    # The prompt goes to the lane that has nothing to do.
    driver.abort(*driver.core._lanes[with_prompt].running)
    step()
    assert [len(plans) for plans in driver.plans] == [3, 3]

    name = driver.submit([3000, *range(4)], max_tokens=2)
    while not any((plan.row_num_tokens > 1).any() for plan in driver.plans[with_prompt]):
        step()
    assert driver.rows(driver.plans[with_prompt][-1], with_prompt)[name] == 5
    step()
    assert [len(plans) for plans in driver.plans] == [2, 2]
    for _ in range(3):
        step()
    assert [len(plans) for plans in driver.plans] == [3, 3]


def test_of_steps_that_were_sent_ahead_a_late_stop_discards_what_they_bring() -> None:
    driver = CoreDriver()
    driver.submit([1, 2, 3], max_tokens=100, stop_token_ids=(9,), name="stops")
    for _ in range(20):
        driver.step(seconds=QUICK_S)
    driver.step(token=9, seconds=QUICK_S)
    told = list(driver.answers["stops"].tokens)
    assert driver.answers["stops"].ending == "stop"
    assert len(driver.plans[0]) == 2
    # Its slot goes to another request, whose rows come behind those two.
    driver.submit([4, 5], max_tokens=2, name="next")
    for token in (6, 7):
        driver.step(token=token, seconds=QUICK_S)
    driver.run()
    assert driver.answers["stops"].tokens == told
    assert driver.answers["next"].tokens == [1, 1]
