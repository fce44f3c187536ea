"""HostMemory by link: what one link granted and leased means nothing to the next one."""

from typing import Any

from raydix.runtime.messages import host
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(17))


def with_a_load_in_flight() -> tuple[CoreDriver, str]:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=2)
    driver.host_turn()
    assert len(driver.plans[0][0].loads) == 4
    return driver, name


def said(driver: CoreDriver, kind: type[Any]) -> list[Any]:
    return [message for message in driver.to_host if isinstance(message, kind)]


def test_end_of_an_earlier_link_leaves_the_current_one_alone() -> None:
    driver = CoreDriver(has_host_memory=True)
    earlier = driver.host_connection
    driver.attach_host()
    driver.send(events.HostLost(connection=earlier))
    driver.submit(PROMPT)
    assert said(driver, host.Lookup), "it is asked as ever"


def test_lease_of_an_earlier_link_is_not_given_back_over_the_next_one() -> None:
    driver, name = with_a_load_in_flight()
    driver.attach_host()
    driver.finish_copies()
    assert not said(driver, host.ReleaseLeases)
    driver.run()
    assert driver.answers[name].ending == "length"


def test_copies_of_an_earlier_link_are_not_abandoned_over_the_next_one() -> None:
    driver, name = with_a_load_in_flight()
    driver.attach_host()
    driver.lose_rank(0)
    assert not said(driver, host.AbandonPages)
    driver.attach_rank(0, incarnation=2)
    driver.run()
    assert driver.answers[name].ending == "length"


def test_host_memory_hears_which_processes_live_once_all_are_there() -> None:
    driver, _ = with_a_load_in_flight()
    driver.lose_host()
    driver.lose_rank(0)
    driver.attach_rank(0)
    driver.attach_host()
    assert said(driver, host.ProcessDrained) == [host.ProcessDrained(pid=100)]
    assert said(driver, host.CopiesDrained)
