"""Requests that are to come from other engines: how many are expected, and of whom."""

from raydix.ids import AskingId, ClientId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import ExpectRequest
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = int32_array([7] * 8)


def hear_of(driver: CoreDriver, number: int, cache_salt: str | None) -> int:
    """How many requests are expected once so many more of a salt were foretold.

    Nothing is decided meanwhile: who does not find room in L1 is expected no longer.
    """
    arrivals = driver.core._life.arrivals
    for _ in range(number):
        told = ExpectRequest(
            asking=AskingId(driver.new_asking("foretold")),
            token_ids=PROMPT,
            within_s=10.0,
            cache_salt=cache_salt,
        )
        event = events.ClientMessage(client_id=ClientId("c"), message=told)
        driver.core.hear(event, driver.now_s)
    return arrivals.num_expected


def test_a_tenant_that_foretells_many_leaves_room_for_others_under_any_of_its_salts() -> None:
    driver = CoreDriver(has_host_memory=True)
    assert hear_of(driver, 100, "alice/a") == 100
    assert hear_of(driver, 200, "alice/b") == 128
    assert hear_of(driver, 200, "bob/") == 128 + 64
    assert hear_of(driver, 1, None) == 128 + 64 + 1


def test_those_without_a_salt_leave_room_for_tenants() -> None:
    driver = CoreDriver(has_host_memory=True)
    assert hear_of(driver, 300, None) == 128
    assert hear_of(driver, 10, "alice/") == 128 + 10
