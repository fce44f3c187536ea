"""How many steps are in flight at a time."""

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


def test_a_third_step_is_not_sent_once_steps_have_become_slow() -> None:
    driver = decoding(QUICK_S)
    for _ in range(20):
        driver.step(seconds=SLOW_S)
    assert len(driver.plans[0]) == 2


def test_a_third_step_is_not_sent_behind_a_prompt() -> None:
    driver = decoding(QUICK_S)
    driver.submit(list(range(10, 20)), max_tokens=100)
    while not any((plan.row_num_tokens > 1).any() for plan in driver.plans[0]):
        driver.step(seconds=QUICK_S)
    driver.step(seconds=QUICK_S)
    assert len(driver.plans[0]) == 2
    for _ in range(3):
        driver.step(seconds=QUICK_S)
    assert len(driver.plans[0]) == 3


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
