"""What the core hears at once, and decides about together."""

import pytest

from raydix.ids import AskingId, ClientId
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import ExpectRequest
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.phase import Phase
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(17))


def with_a_load_that_is_leased() -> tuple[CoreDriver, str]:
    """A core that has heard of a lease, and has not decided yet."""
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=2)
    for _ in range(2):
        messages = list(driver.to_host)
        driver.to_host.clear()
        for answer in (each for message in messages for each in driver._host.answer(message)):
            message = events.HostMessage(connection=driver.host_connection, message=answer)
            if isinstance(answer, host.PagesLeased):
                driver.core.hear(message, driver.now_s)
            else:
                driver.send(message)
    assert driver.leases
    assert not driver.plans[0]
    return driver, name


def test_lease_ends_that_comes_at_once_with_the_loss_of_the_rank_it_was_for() -> None:
    driver, name = with_a_load_that_is_leased()
    driver.lose_rank(0)
    driver.host_turn()
    assert not driver.leases

    driver.attach_rank(0, incarnation=2)
    driver.run()
    assert driver.answers[name].ending == "length"


def test_new_link_grants_nothing_before_a_load_is_done_that_an_earlier_one_leased() -> None:
    driver, name = with_a_load_that_is_leased()
    driver.core.hear(events.HostLost(connection=driver.host_connection), driver.now_s)
    driver.to_host.clear()
    driver.attach_host()
    assert driver.plans[0][0].loads, "the pages are those of the same arena, and may be read"
    assert host.CopiesDrained() not in driver.to_host

    driver.finish_copies()
    assert host.CopiesDrained() in driver.to_host
    driver.run()
    assert driver.answers[name].ending == "length"


@pytest.mark.parametrize("num_pages", [4, 300], ids=["at once", "while its keys are hashed"])
def test_nothing_is_reserved_for_a_request_that_is_foretold_before_a_sleep(num_pages: int) -> None:
    driver = CoreDriver(has_host_memory=True, num_pages=(1000,), max_model_len=2000)
    prompt = int32_array([7] * 4 * num_pages)
    told = ExpectRequest(asking=AskingId(1), token_ids=prompt, within_s=10.0)
    driver.core.hear(events.ClientMessage(client_id=ClientId("c"), message=told), driver.now_s)
    if num_pages > 256:
        driver.send_tick()
    driver.send(events.FallAsleep(with_weights=False))
    driver.wait(1.0)
    assert driver.core.phase is Phase.GIVING_BACK
    assert driver.core.stats()["l1_reserved_pages"] == 0
