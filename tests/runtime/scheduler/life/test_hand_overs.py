"""A request that goes on elsewhere ends with its first token, and says when its pages are in L2."""

from typing import Any

import pytest

from raydix.ids import ClientId
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver
from tests.runtime.scheduler.l2_driver import OTHER, PROMPT, driver_with


def begun(driver: CoreDriver, **fields: Any) -> str:
    """A request that has its first token here, while nothing of it is in L2 yet."""
    name = driver.submit(PROMPT, goes_on_elsewhere=True, **fields)
    driver.host_turn()
    while name not in driver.answers:
        driver.step()
    return name


def test_the_first_token_comes_at_once_and_the_end_once_l2_has_the_pages() -> None:
    driver = driver_with()
    name = begun(driver)
    assert (driver.answers[name].tokens, driver.answers[name].ending) == ([1], None)
    assert not driver.core.is_idle

    driver.run()

    assert driver.answers[name].ending == "handed_over"
    assert driver.answers[name].tokens == [1]
    assert all(driver.in_l2(0, driver.keys(PROMPT)))
    assert driver.core.is_idle
    driver.core.check()


@pytest.mark.parametrize("num_tokens", range(1, 18))
def test_a_page_that_the_first_token_fills_is_not_awaited(num_tokens: int) -> None:
    driver = driver_with()
    name = driver.submit(PROMPT[:num_tokens], goes_on_elsewhere=True)
    # No time passes but that of steps.
    driver.run()
    assert driver.answers[name].ending == "handed_over"


def test_who_was_handed_over_holds_nothing() -> None:
    driver = driver_with()
    begun(driver)
    assert driver.core.stats()["num_requests_running"] == 0
    assert not driver.core._lanes[0].l1.tree.num_locks


def test_pages_that_do_not_come_are_awaited_as_long_as_computing_them_takes() -> None:
    driver = driver_with()
    name = begun(driver)
    driver.wait(0.05)
    assert driver.answers[name].ending is None
    driver.wait(60.0)
    assert driver.answers[name].ending == "handed_over"


def test_pages_are_not_awaited_beyond_the_deadline() -> None:
    driver = driver_with()
    name = begun(driver, deadline_s=0.07)
    driver.wait(0.02)
    assert driver.answers[name].ending is None
    driver.wait(0.05)
    assert driver.answers[name].ending == "handed_over"


def test_a_head_that_l2_has_lost_and_l1_has_is_brought_back_to_it() -> None:
    driver = driver_with()
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    driver.drop_from_l2(driver.keys(PROMPT[:8]))

    name = driver.submit([*PROMPT[:12], 91, 92, 93, 94, 95], goes_on_elsewhere=True)
    driver.run()

    assert driver.answers[name].ending == "handed_over"
    assert all(driver.in_l2(0, driver.keys(PROMPT[:12])))


def test_without_l2_a_request_goes_on_elsewhere_at_once() -> None:
    driver = driver_with()
    driver.lose_host()
    assert driver.answers[begun(driver)].ending == "handed_over"


def test_a_lost_l2_keeps_nobody() -> None:
    driver = driver_with()
    name = begun(driver)
    driver.lose_host()
    assert driver.answers[name].ending == "handed_over"


def test_pages_that_l2_has_already_keep_nobody() -> None:
    driver = driver_with()
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, goes_on_elsewhere=True)
    driver.run()
    assert driver.answers[name].ending == "handed_over"


@pytest.mark.parametrize(("max_tokens", "ending"), [(1, "length"), (2, "handed_over")])
def test_an_output_that_is_complete_goes_on_nowhere(max_tokens: int, ending: str) -> None:
    driver = driver_with()
    name = driver.submit(PROMPT, goes_on_elsewhere=True, max_tokens=max_tokens)
    driver.run()
    assert driver.answers[name].ending == ending


def test_a_stop_token_ends_what_would_have_gone_on() -> None:
    driver = driver_with()
    name = begun(driver, stop_token_ids=(1,))
    assert driver.answers[name].ending == "stop"


@pytest.mark.parametrize("end", ["abort", "stop"])
def test_a_client_may_end_it_before_it_goes_on(end: str) -> None:
    driver = driver_with()
    name = begun(driver)
    getattr(driver, end)(name)
    assert driver.answers[name].ending == end
    driver.run()
    assert driver.core.is_idle


def test_its_name_is_in_use_until_it_goes_on() -> None:
    driver = driver_with()
    name = begun(driver)
    twin = driver.new_asking(name)
    assert driver.core._requests.is_in_use(name)
    driver.run()
    assert not driver.core._requests.is_in_use(name)
    assert twin


def test_nobody_is_told_whose_client_is_gone() -> None:
    driver = driver_with()
    name = begun(driver)
    driver.send(events.ClientGone(client_id=ClientId(CLIENT)))
    driver.run()
    assert driver.answers[name].ending is None
    assert driver.core.is_idle


def test_what_is_nobodys_by_its_first_token_keeps_its_name_from_nobody() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        num_pages=(400,),
        max_running_requests=64,
        prefill_budget_tokens=2000,
    )
    for number in range(40):
        driver.submit([number, 7] * 6, client="former link", goes_on_elsewhere=True)
    driver.host_turn()
    driver.step()
    driver.host_turn()
    driver.send(events.ClientGone(client_id=ClientId("former link")))
    # They end some at a time, and steps with the others are under way.
    name, *_ = driver.core._lanes[0].running
    while name in driver.core._requests.living:
        driver.step()

    driver.answers.pop(name, None)
    driver.submit([1, 2, 3], name=name, client="next link")
    driver.run()
    assert driver.answers[name].ending == "length"


def test_an_engine_that_stops_lets_them_go_at_once() -> None:
    driver = driver_with()
    name = begun(driver)
    driver.send(events.EndRequests())
    assert driver.answers[name].ending == "handed_over"


def test_what_is_kept_in_l1_alone_is_not_awaited_for_long() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK)
    name = begun(driver)
    driver.wait(60.0)
    assert driver.answers[name].ending == "handed_over"


def test_few_pages_wait_for_no_others_before_they_are_copied() -> None:
    driver = driver_with(num_pages=(4096,))
    driver.submit(OTHER, max_tokens=40)
    driver.host_turn()
    driver.step()
    # A copy has just begun, as far as is known: others would wait for more pages.
    driver.core._lanes[0].backups._taken_s = driver.now_s + 10.0
    begun(driver)
    assert driver.finish_copies()
