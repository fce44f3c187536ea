"""Prefetches without a request go after requests, hold nothing and are always answered."""

from typing import Any

import pytest

from raydix.ids import ClientId, PinId, RequestId
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import PrefetchPrompt, UnpinPrompt
from raydix.runtime.messages.host import PageSource, Urgency
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

PROMPT = list(range(17))
L1, L2, L3, PENDING = PageSource.L1, PageSource.L2, PageSource.L3, PageSource.PENDING
NOT_FOUND = PageSource.NOT_FOUND


def driver_with(**changes: Any) -> CoreDriver:
    return CoreDriver(has_host_memory=True, lookup_deadline_s=100.0, **changes)


def prefetch(
    driver: CoreDriver, tokens: list[int], name: str = "hint", salt: str | None = None
) -> str:
    message = PrefetchPrompt(
        asking=driver.new_asking(name),
        request_id=RequestId(name),
        token_ids=int32_array(tokens),
        cache_salt=salt,
    )
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    return name


def lookups(driver: CoreDriver) -> list[str]:
    return [
        driver.asker_of(message.lookup_id)
        for message in driver.to_host
        if isinstance(message, host.Lookup)
    ]


def test_prefetch_tells_where_the_tokens_were_and_computes_nothing() -> None:
    driver = driver_with()
    driver.submit(PROMPT[:5], max_tokens=1)
    driver.run()
    name = prefetch(driver, PROMPT)
    [lookup] = [message for message in driver.to_host if isinstance(message, host.Lookup)]
    assert (lookup.keys, lookup.num_l1_pages, lookup.urgency) == (
        driver.keys(PROMPT),
        (1,),
        Urgency.HINT,
    )
    driver.to_host.clear()
    driver.report_lookup(name, [L1, L2, PENDING, PENDING])
    assert driver.answers[name].ending is None
    driver.report_lookup(name, [L1, L2, L3, NOT_FOUND])
    sources = {"l1": 4, "l2": 4, "l3": 4, "computed:not_found": 4, "computed:partial_page": 1}

    assert driver.answers[name].sources == sources
    assert driver.answers[name].ending == "prefetch"
    assert not driver.plans[0]
    assert driver.core.is_idle


def test_a_prefetch_is_told_of_while_it_goes_on_and_afterwards() -> None:
    driver = driver_with()

    def told(name: str) -> tuple[Any, ...] | None:
        state = driver.core.prefetch_state(RequestId(name))
        return state and (state["status"], state["num_found_pages"], state["num_pages"])

    assert told("hint") is None
    name = prefetch(driver, PROMPT, salt="s")
    assert told(name) == ("pending", 0, 4)
    driver.report_lookup(name, [L2, L3, PENDING, PENDING])
    assert told(name) == ("pending", 2, 4)
    driver.report_lookup(name, [L2, L3, L3, NOT_FOUND])
    assert told(name) == ("completed", 3, 4)
    state = driver.core.prefetch_state(RequestId(name))
    assert state is not None
    assert state["tokens_by_source"] == driver.answers[name].sources
    assert state["tenant_id"] == tenant_of("s")

    driver.abort(prefetch(driver, PROMPT, "aborted"))
    prefetch(driver, PROMPT, "orphan")
    driver.send(events.ClientGone(client_id=CLIENT))
    assert told("aborted") == told("orphan") == ("cancelled", 0, 4)


def test_a_prefetch_that_is_refused_is_not_remembered() -> None:
    driver = driver_with()
    prefetch(driver, [], "empty")
    assert driver.core.prefetch_state(RequestId("empty")) is None


def test_prefetch_holds_nothing_and_counts_as_no_request() -> None:
    driver = driver_with()
    prefetch(driver, PROMPT)
    stats = driver.core.stats()
    assert not stats["num_requests_waiting"]
    assert not stats["l1_used_pages"]
    driver.run()
    stats = driver.core.stats()
    assert stats["prompt_tokens"] == 0
    assert stats["prefetches"] == 1
    assert not any(name.startswith("finished_") for name in stats)


def test_keys_of_hints_are_hashed_after_those_of_requests() -> None:
    driver = driver_with(max_model_len=20_000, num_pages=(6000,))
    prefetch(driver, [1] * 12_000, "hint")
    driver.submit([2] * 12_000, name="request")
    while len(lookups(driver)) < 2:
        driver.send_tick()
    assert lookups(driver) == ["request", "hint"]


def test_few_hints_are_looked_up_at_a_time_in_order() -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{index}") for index in range(6)]
    assert lookups(driver) == names[:4]
    driver.report_lookup(names[2], [NOT_FOUND] * 4)
    assert lookups(driver) == names[:5]
    driver.abort(names[0])
    assert lookups(driver) == names


@pytest.mark.parametrize("is_looked_up", [True, False])
def test_cancelled_prefetch_ends_at_once_and_fetches_no_more(is_looked_up: bool) -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{index}") for index in range(1 if is_looked_up else 5)]
    driver.abort(names[-1])
    assert driver.answers[names[-1]].ending == "abort"
    cancels = [message for message in driver.to_host if isinstance(message, host.CancelLookup)]
    assert len(cancels) == int(is_looked_up)


def test_report_that_comes_after_the_cancel_is_ignored() -> None:
    driver = driver_with()
    name = prefetch(driver, PROMPT)
    driver.abort(name)
    driver.report_lookup(name, [PageSource.CANCELLED] * 4)
    assert driver.answers[name].sources is None


def test_vanished_client_leaves_no_hint() -> None:
    driver = driver_with()
    for index in range(6):
        prefetch(driver, PROMPT, f"hint-{index}")
    driver.send(events.ClientGone(client_id=ClientId("another")))
    assert len(driver.core._requests.hints) == 6
    driver.send(events.ClientGone(client_id=CLIENT))
    assert not driver.core._requests.hints
    assert (
        len([message for message in driver.to_host if isinstance(message, host.CancelLookup)]) == 4
    )


def test_every_hint_is_answered_when_host_memory_dies() -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{index}") for index in range(6)]
    driver.report_lookup(names[0], [L2, PENDING, PENDING, PENDING])
    driver.lose_host()
    assert [driver.answers[name].ending for name in names] == ["prefetch"] * 6
    assert driver.answers[names[0]].sources == {
        "l2": 4,
        "computed:io_error": 12,
        "computed:partial_page": 1,
    }
    assert driver.answers[names[5]].sources == {"computed:io_error": 16, "computed:partial_page": 1}


def test_every_hint_is_answered_when_host_memory_is_silent() -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{index}") for index in range(6)]
    driver.wait(101.0)
    assert driver.answers[names[0]].sources == {
        "computed:io_error": 16,
        "computed:partial_page": 1,
    }
    assert [driver.answers[name].ending for name in names] == ["prefetch"] * 6


@pytest.mark.parametrize("changes", [{"prefix_caching": False}, {"has_host_memory": False}])
def test_engine_that_cannot_prefetch_refuses(changes: dict[str, Any]) -> None:
    driver = CoreDriver(**{"has_host_memory": True, **changes})
    assert driver.answers[prefetch(driver, PROMPT)].ending == "BadRequest"


@pytest.mark.parametrize("num_tokens", [0, 100])
def test_prompt_that_no_request_could_have_is_refused(num_tokens: int) -> None:
    driver = driver_with(max_model_len=100)
    assert driver.answers[prefetch(driver, [1] * num_tokens)].ending == "BadRequest"


def test_prefetch_under_an_id_in_use_is_refused() -> None:
    driver = driver_with()
    name = driver.submit(PROMPT)
    prefetch(driver, PROMPT, name)
    assert driver.answers[name].ending == "BadRequest"


def test_hints_beyond_the_bound_are_refused_with_a_time_to_try_again() -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{index}") for index in range(257)]
    assert [name for name in names if driver.answers[name].ending is not None] == names[-1:]
    assert driver.answers[names[-1]].ending == "Overloaded"
    assert driver.answers[names[-1]].retry_after_s > 0
    driver.host_turn()
    while driver.to_host:
        driver.host_turn()
    assert all(driver.answers[name].ending == "prefetch" for name in names[:-1])


def test_hints_of_one_tenant_leave_room_for_those_of_others() -> None:
    driver = driver_with()
    names = [prefetch(driver, PROMPT, f"hint-{each}", f"alice/{each}") for each in range(200)]
    other = prefetch(driver, PROMPT, "other", "bob/")
    assert [name for name in names if driver.answers[name].ending is not None] == names[128:]
    assert driver.answers[other].ending is None


def test_prompt_without_a_full_page_is_answered_at_once() -> None:
    driver = driver_with()
    assert driver.answers[prefetch(driver, [1, 2])].sources == {"computed:partial_page": 2}
    assert not lookups(driver)


def test_what_is_to_be_pinned_is_looked_up_in_l2_though_l1_has_it() -> None:
    driver = driver_with(max_keep_s=60.0)
    driver.submit(PROMPT[:9], max_tokens=1)
    driver.run()
    driver.to_host.clear()
    message = PrefetchPrompt(
        asking=driver.new_asking("p"),
        request_id=RequestId("p"),
        token_ids=int32_array(PROMPT),
        cache_salt="x",
        pin_s=1e9,
    )
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    [lookup] = [each for each in driver.to_host if isinstance(each, host.Lookup)]
    assert lookup.num_l1_pages == (0,)
    assert lookup.pin is not None
    pin = lookup.pin
    assert (pin.pin_id, pin.tenant, pin.seconds) == ("p", tenant_of("x"), 60.0)

    driver.to_host.clear()
    unpin = UnpinPrompt(pin_id=pin.pin_id, tenant=tenant_of("x"))
    driver.send(events.ClientMessage(client_id=CLIENT, message=unpin))
    assert list(driver.to_host) == [host.ReleasePin(pin_id=pin.pin_id, tenant=tenant_of("x"))]


@pytest.mark.parametrize("way", ["aborted", "gone"])
def test_a_pin_is_released_whose_client_hears_no_report_of_it(way: str) -> None:
    driver = driver_with()
    message = PrefetchPrompt(
        asking=driver.new_asking("p"),
        request_id=RequestId("p"),
        token_ids=int32_array(PROMPT),
        pin_s=60.0,
    )
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    driver.to_host.clear()
    if way == "aborted":
        driver.abort("p")
    else:
        driver.send(events.ClientGone(client_id=CLIENT))
    cancelled, released = driver.to_host
    assert isinstance(cancelled, host.CancelLookup)
    assert released == host.ReleasePin(pin_id=PinId("p"), tenant=tenant_of(None))
