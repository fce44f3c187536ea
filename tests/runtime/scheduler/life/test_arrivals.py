"""Requests that are to come from other engines: how many are expected, and of whom."""

import pytest

from raydix.ids import AskingId, ClientId
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import ExpectRequest
from raydix.runtime.messages.host import MirrorUpdate
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.sources.mirror import Mirror
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.keys import mirror_keys

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


def test_however_many_are_foretold_at_once_an_event_hashes_as_many_keys() -> None:
    driver = CoreDriver(has_host_memory=True, num_pages=(400,), max_model_len=2000)
    for number in range(20):
        told = ExpectRequest(
            asking=AskingId(driver.new_asking("foretold")),
            token_ids=int32_array([number] * 1600),
            within_s=60.0,
        )
        event = events.ClientMessage(client_id=ClientId("c"), message=told)
        driver.core.hear(event, driver.now_s)
    chains = [each.chain for each in driver.core._life.arrivals._expected.values()]

    hashed = [0]
    while hashed[-1] < 20 * 400:
        driver.send_tick()
        hashed.append(sum(chain.num_keys for chain in chains))
        assert hashed[-1] - hashed[-2] <= 1024
        is_due = (due_s := driver.core.next_deadline_s()) is not None and due_s <= driver.now_s
        assert is_due or hashed[-1] == 20 * 400


LONG = [token % 50 for token in range(400)]


def foretell(driver: CoreDriver, tokens: list[int]) -> None:
    message = ExpectRequest(
        asking=AskingId(driver.new_asking("foretold")),
        token_ids=int32_array(tokens),
        within_s=60.0,
    )
    driver.send(events.ClientMessage(client_id=ClientId("c"), message=message))


def tell_of(driver: CoreDriver, tokens: list[int]) -> None:
    """L2 says that it has the pages of these tokens."""
    ready = mirror_keys(driver.keys(tokens))
    driver.send(
        events.HostMessage(
            connection=driver.host_connection, message=MirrorUpdate(ready=ready, group=0)
        )
    )


@pytest.mark.parametrize("is_told_first", [False, True])
def test_nothing_is_reserved_for_what_would_be_computed_anyway(is_told_first: bool) -> None:
    driver = CoreDriver(
        has_host_memory=True, num_pages=(400,), max_model_len=1000, load=LoadPolicy.NEVER
    )
    if is_told_first:
        tell_of(driver, LONG)
    foretell(driver, LONG)
    assert driver.core.stats()["l1_reserved_pages"] == 0
    assert driver.core._life.arrivals.num_expected == 0


def test_what_has_come_is_counted_once_however_many_events_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What has come is too little for large copies.
    driver = CoreDriver(
        has_host_memory=True, num_pages=(400,), max_model_len=1000, min_part_bytes=1 << 30
    )
    foretell(driver, LONG)
    assert driver.core.stats()["l1_reserved_pages"] > 0
    counted: list[int] = []
    count = Mirror.count_resident

    def count_and_note(self: Mirror, group: int, keys: bytes, start: int, stop: int) -> int:
        counted.append(stop - start)
        return count(self, group, keys, start, stop)

    monkeypatch.setattr(Mirror, "count_resident", count_and_note)
    tell_of(driver, LONG[:200])
    for _ in range(20):
        driver.send(events.Tick())
    assert len(counted) == 1
