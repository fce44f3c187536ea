"""A session that says when it goes on finds its prompt in L2, if L3 can bring it until then."""

from typing import Any

import pytest

from raydix.ids import RequestId
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import PrefetchPrompt, RetainSession
from raydix.runtime.messages.host import PageSource, StorageStatus, Urgency
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life import returns
from raydix.runtime.scheduler.life.returns import lead_s
from raydix.runtime.scheduler.request.users import session_user
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

A, B = [1] * 8, [2] * 8
L3 = PageSource.L3
LEAD_S = lead_s(0.0, 10.0)
END = Retention(kind=RetentionKind.END)


def pause(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.RESUME, seconds=seconds)


def driver_with(*, has_storage: bool = True, **changes: Any) -> CoreDriver:
    driver = CoreDriver(has_host_memory=True, num_pages=(40,), **changes)
    driver.hear_host(
        StorageStatus(is_in_use=has_storage, max_staged_pages=(1000,), min_tokens=0, answer_s=0.0)
    )
    return driver


def serve(driver: CoreDriver, tokens: list[int], **fields: Any) -> None:
    """Run a request, and have L2 lose what it leaves there."""
    driver.submit(tokens, max_tokens=1, **fields)
    driver.run()
    driver.drop_from_l2(driver.keys(tokens, fields.get("cache_salt")))
    driver.to_host.clear()


def hint(driver: CoreDriver, retention: Retention, **fields: Any) -> None:
    message = RetainSession(session_id="s", retention=retention, **fields)
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))


def lookups(driver: CoreDriver) -> list[host.Lookup]:
    return [message for message in driver.to_host if isinstance(message, host.Lookup)]


def ends(driver: CoreDriver) -> list[host.EndUse]:
    return [message for message in driver.to_host if isinstance(message, host.EndUse)]


def begin(driver: CoreDriver) -> host.Lookup:
    """Let the time come at which a pause of ten seconds is about to end."""
    driver.wait(10.0 - LEAD_S)
    [lookup] = lookups(driver)
    return lookup


@pytest.mark.parametrize("comes_later", [False, True])
def test_a_session_is_looked_up_before_it_goes_on(comes_later: bool) -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=None if comes_later else pause(10.0))
    if comes_later:
        hint(driver, pause(10.0))
    driver.wait(10.0 - LEAD_S - 2.0)
    assert not lookups(driver)

    driver.wait(2.01)
    [lookup] = lookups(driver)
    assert (lookup.keys, lookup.user) == (driver.keys(A), session_user("s", None))
    assert lookup.urgency is Urgency.HINT
    assert driver.core.is_idle


def test_once_its_pages_are_there_a_session_rests_on() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    lookup = begin(driver)
    driver.to_host.clear()
    driver.report_lookup(lookup.lookup_id, [L3, L3])
    [end] = ends(driver)
    assert end.user == lookup.user
    assert end.retention is not None
    assert end.retention.kind is RetentionKind.RESUME
    assert end.retention.seconds == pytest.approx(LEAD_S, abs=0.01)


def test_what_l2_has_is_not_looked_up() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    driver.fill_l2(A)
    driver.wait(11.0)
    assert not lookups(driver)


def test_without_l3_nothing_is_looked_up() -> None:
    driver = driver_with(has_storage=False)
    serve(driver, A, session_id="s", retention=pause(10.0))
    driver.wait(11.0)
    assert not lookups(driver)


def test_without_l2_nothing_is_remembered() -> None:
    driver = driver_with()
    driver.lose_host()
    serve(driver, A, session_id="s", retention=pause(10.0))
    assert not driver.core._life.retention._returns.num_remembered


def test_a_session_that_goes_on_earlier_is_not_looked_up_for_its_pause() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    name = driver.submit(A + B, max_tokens=1, session_id="s")
    driver.wait(11.0)
    assert [driver.asker_of(lookup.lookup_id) for lookup in lookups(driver)] == [name]
    driver.run()
    driver.wait(11.0)
    assert len(lookups(driver)) <= 1


def test_a_request_that_comes_meanwhile_is_left_its_pages_in_use() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    lookup = begin(driver)
    driver.submit(A + B, max_tokens=3, session_id="s")
    driver.to_host.clear()
    driver.report_lookup(lookup.lookup_id, [L3, L3])
    assert not ends(driver)


@pytest.mark.parametrize("later", [END, pause(100.0)], ids=["ended", "longer"])
def test_a_later_hint_ends_what_is_under_way(later: Retention) -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    begin(driver)
    driver.to_host.clear()
    hint(driver, later)
    assert [type(message) for message in driver.to_host] == [host.CancelLookup, host.EndUse]
    driver.wait(11.0)
    assert not lookups(driver)
    assert not driver.core._requests.hints


def test_a_hint_of_another_tenant_brings_nothing() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", cache_salt="x")
    hint(driver, pause(1.0))
    hint(driver, pause(1.0), cache_salt="y")
    driver.wait(2.01)
    assert not lookups(driver)


def test_the_longest_rested_are_forgotten_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_MAX_TOKENS", 30)
    driver = driver_with()
    for name in range(10):
        serve(driver, [10 + name] * 8, session_id=str(name), retention=pause(10.0))
    driver.core.check()
    assert driver.core._life.retention._returns.num_remembered == 3
    driver.wait(11.0)
    assert len(lookups(driver)) == 3


def test_sessions_that_return_keep_no_client_from_its_prefetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returns, "_MAX_LOOKED_UP", 2)
    driver = driver_with(lookup_deadline_s=100.0)
    for name in range(6):
        serve(driver, [10 + name] * 8, session_id=str(name), retention=pause(10.0))
    driver.wait(11.0)
    assert len(driver.core._requests.hints) == 2
    message = PrefetchPrompt(
        asking=driver.new_asking("p"), request_id=RequestId("p"), token_ids=int32_array(B)
    )
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    assert driver.answers["p"].ending is None, "it is looked up"

    for _ in range(3):
        for lookup in lookups(driver):
            driver.report_lookup(lookup.lookup_id, [L3, L3])
    assert driver.answers["p"].ending == "prefetch"
    assert driver.core.stats()["session_returns"] == 6


def test_a_lost_host_memory_leaves_no_return() -> None:
    driver = driver_with()
    serve(driver, A, session_id="s", retention=pause(10.0))
    begin(driver)
    driver.lose_host()
    assert not driver.core._requests.hints
    driver.core.check()
