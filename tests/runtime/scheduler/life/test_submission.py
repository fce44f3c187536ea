"""What is taken in and what is refused, by what lives already."""

import sys
from types import FrameType
from typing import Any

import pytest

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import GREEDY, CoreDriver


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


def test_those_that_go_on_count_until_they_run_or_their_client_is_gone() -> None:
    driver = CoreDriver(max_running_requests=1, max_waiting_requests=8)
    requests = driver.core._requests
    driver.submit([1], max_tokens=2)
    names = [driver.submit([1], max_tokens=2, known_output=int32_array([5])) for _ in range(3)]
    assert requests.num_going_on == 3
    driver.abort(names[2])
    assert requests.num_going_on == 2
    # The first ends, and one of the others runs.
    while requests.num_going_on == 2:
        driver.step()
    assert requests.num_going_on == 1
    driver.lose_rank(0)
    assert requests.num_going_on == 2
    driver.send(events.ClientGone(client_id=ClientId("client")))
    assert requests.num_going_on == 0


def test_a_tenants_request_is_taken_in_as_soon_however_many_wait() -> None:
    assert num_lines_of_a_submission(400) <= num_lines_of_a_submission(40) + 20


def num_lines_of_a_submission(num_waiting: int) -> int:
    """The lines of code that run for a tenant's request, while so many go on of another one."""
    driver = CoreDriver(max_running_requests=1, max_waiting_requests=8)
    for _ in range(num_waiting):
        driver.submit([1], cache_salt="a/", known_output=int32_array([1]))
    num_lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return trace

    request = SubmitRequest(
        asking=AskingId(num_waiting + 1),
        request_id=RequestId("b"),
        token_ids=int32_array([1]),
        sampling=GREEDY,
        max_tokens=2,
        cache_salt="b/",
    )
    told = events.ClientMessage(client_id=ClientId("other"), message=request)
    former = sys.gettrace()
    sys.settrace(trace)
    try:
        driver.core.hear(told, driver.now_s)
    finally:
        sys.settrace(former)
    assert "b" in driver.core._requests.living
    return num_lines
