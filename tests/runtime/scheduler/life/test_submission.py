"""What is taken in and what is refused, by what lives already."""

import pytest

from raydix.runtime.messages.arrays import int32_array
from tests.runtime.scheduler.core_driver import CoreDriver


@pytest.mark.parametrize("known", [[], [5]])
def test_what_was_taken_in_before_waits_however_many_wait(known: list[int]) -> None:
    driver = CoreDriver(max_waiting_requests=1, max_running_requests=1)
    names = [driver.submit([1], max_tokens=2) for _ in range(2)]
    names.append(driver.submit([1], max_tokens=2, known_output=int32_array(known)))
    driver.run()
    assert [driver.answers[name].ending for name in names] == ["length"] * 3


def test_a_tenant_that_floods_leaves_room_for_others_under_any_of_its_salts() -> None:
    driver = CoreDriver(max_waiting_requests=8, max_running_requests=1)
    flood = [driver.submit([1], cache_salt=f"alice/{number}") for number in range(30)]
    refused = [name for name in flood if name in driver.answers and driver.answers[name].ending]
    other = driver.submit([1], cache_salt="bob/")
    # One runs, and four wait.
    assert len(refused) == 30 - 5
    assert {driver.answers[name].ending for name in refused} == {"Overloaded"}
    assert driver.answers[refused[0]].retry_after_s
    assert other not in driver.endings

    # Once some of its requests have ended, it may ask again.
    driver.run()
    assert driver.answers[other].ending == "length"
    again = driver.submit([1], cache_salt="alice/")
    driver.run()
    assert driver.answers[again].ending == "length"


def test_requests_without_a_salt_may_have_all_places() -> None:
    driver = CoreDriver(max_waiting_requests=8, max_running_requests=1)
    names = [driver.submit([1]) for _ in range(10)]
    # One runs, and eight wait.
    assert driver.endings == names[9:]
    assert driver.answers[names[-1]].ending == "Overloaded"


def test_what_goes_on_is_never_refused_and_leaves_other_tenants_their_places() -> None:
    driver = CoreDriver(max_running_requests=1, max_waiting_requests=4)
    driver.submit(list(range(8)), cache_salt="a/", known_output=int32_array([1]))
    for _ in range(6):
        driver.submit(list(range(8)), cache_salt="a/", known_output=int32_array([1]))
    others = [driver.submit(list(range(8)), cache_salt="b/") for _ in range(3)]
    # The first two find as many places as there are; of the one that has much going on none is.
    own = driver.submit(list(range(8)), cache_salt="a/")
    told = {name: each.ending for name, each in driver.answers.items() if each.ending}
    assert told == dict.fromkeys((others[2], own), "Overloaded")
