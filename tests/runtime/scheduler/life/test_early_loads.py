"""A session that says when it goes on finds in L1 what L2 has of it, if nobody needs the room."""

from typing import Any

import pytest

from raydix.runtime.cache.page_key import pack_tokens, root_key
from raydix.runtime.messages import host
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.host import PageSource, StorageStatus
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life import early_loads
from raydix.runtime.scheduler.life.early_loads import Spare, lead_s, num_early_pages
from raydix.runtime.scheduler.phase import Phase
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver
from tests.runtime.scheduler.l2_driver import driver_with, evict_from_l1, serve

A = list(range(100, 133))
B = list(range(200, 217))
SPARE = Spare(num_waiting=0, num_freeable=20, num_kept=3, num_to_come=4, num_left=12)
BEGUN_S = 10.0 - lead_s(0.0) + 0.01
"""After so much of a pause of ten seconds its session is loaded."""


def pause(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.RESUME, seconds=seconds)


def rest(**changes: Any) -> CoreDriver:
    """A session rests for ten seconds; L2 alone has its pages."""
    driver = driver_with(**{"num_pages": (40,), **changes})
    serve(driver, A, session_id="s", retention=pause(10.0))
    evict_from_l1(driver)
    driver.host_turn()
    return driver


def begin(driver: CoreDriver) -> None:
    driver.wait(BEGUN_S)
    [promotion] = driver.core._lanes[0].promotions.all()
    assert promotion.returns is not None
    assert not driver.core.is_idle


def num_in_l1(driver: CoreDriver) -> int:
    driver.run()
    return driver.core.stats()["l1_cached_pages"]


def num_loaded(driver: CoreDriver) -> int:
    return driver.core.stats()["session_early_loads"]


@pytest.mark.parametrize(
    ("changes", "num_pages"),
    [
        ({}, 12),
        ({"num_left": 30}, 13),
        ({"num_l2_pages": 5}, 5),
        ({"num_waiting": 1}, 0),
        ({"num_to_come": 17}, 0),
        ({"num_to_come": 40}, 0),
        ({"num_left": -2}, 0),
    ],
)
def test_an_early_load_takes_what_nobody_may_need(changes: dict[str, int], num_pages: int) -> None:
    num_l2_pages = changes.pop("num_l2_pages", 100)
    fields = {name: getattr(SPARE, name) for name in Spare.__slots__}
    assert num_early_pages(num_l2_pages, Spare(**{**fields, **changes})) == num_pages


def test_a_session_is_in_l1_when_its_pause_ends() -> None:
    driver = rest()
    driver.wait(BEGUN_S - 0.1)
    assert num_in_l1(driver) == 0
    driver.wait(0.1)
    assert num_in_l1(driver) == 8
    driver.core.check()

    name = driver.submit([*A, 7, 8], max_tokens=1, session_id="s")
    driver.run()
    assert driver.answers[name].sources == {"l1": 32, "computed:partial_page": 3}
    assert num_loaded(driver) == 1


def test_what_was_loaded_early_goes_with_its_session() -> None:
    driver = rest(num_pages=(28,))
    begin(driver)
    driver.run()
    end = Retention(kind=RetentionKind.END)
    driver.send(
        events.ClientMessage(client_id=CLIENT, message=RetainSession(session_id="s", retention=end))
    )
    serve(driver, B)
    serve(driver, list(range(300, 300 + 4 * 22)))
    tree = driver.core._lanes[0].l1.tree
    matches = [tree.match(root_key(), pack_tokens(each)) for each in (A, B)]
    assert [match.num_pages for match in matches] == [2, 4], "the ended one went first"
    driver.core.check()


def test_nothing_is_loaded_for_a_session_while_requests_wait() -> None:
    driver = rest(max_running_requests=1)
    driver.wait(BEGUN_S - 0.04)
    driver.submit(B, max_tokens=9)
    driver.submit([*B, 1], max_tokens=9)
    driver.wait(0.04)
    assert not [each for each in driver.to_host if isinstance(each, host.LeasePages)]
    driver.run()
    driver.wait(0.1)
    assert num_loaded(driver) == 1, "once nobody waits it comes late rather than never"


def test_early_loads_give_way_to_whoever_needs_their_pages() -> None:
    driver = rest(num_pages=(20,))
    begin(driver)
    name = driver.submit(list(range(500, 500 + 4 * 18)), max_tokens=1)
    driver.run()
    assert driver.answers[name].ending == "length"
    driver.core.check()


def test_a_request_of_the_session_waits_for_what_is_being_loaded() -> None:
    driver = rest()
    begin(driver)
    driver.submit([*A, 7, 8], max_tokens=1, session_id="s")
    driver.run()
    assert driver.core.stats()["promoted_pages"] == 8
    assert driver.core.stats()["load_decisions"] == 0, "they are loaded once"


@pytest.mark.parametrize("lost", ["host", "rank", "stale"])
def test_an_early_load_that_is_lost_leaves_nothing(lost: str) -> None:
    driver = rest()
    begin(driver)
    match lost:
        case "host":
            driver.lose_host()
        case "rank":
            driver.host_turn()
            driver.lose_rank(0)
            driver.attach_rank(0, incarnation=2)
        case "stale":
            driver.host_turn()
            driver.finish_copies(is_stale=True)
    driver.run()
    driver.core.check()
    assert driver.core.is_idle
    assert num_in_l1(driver) == 0


def test_a_later_hint_ends_a_load_under_way() -> None:
    driver = rest()
    begin(driver)
    message = RetainSession(session_id="s", retention=pause(100.0))
    driver.send(events.ClientMessage(client_id=CLIENT, message=message))
    assert not len(driver.core._lanes[0].promotions)
    driver.run()
    driver.core.check()
    assert num_in_l1(driver) == 0


def test_what_l3_brings_first_goes_on_to_l1() -> None:
    driver = rest()
    driver.hear_host(
        StorageStatus(is_in_use=True, max_staged_pages=(1000,), min_tokens=0, answer_s=0.0)
    )
    name = serve(driver, [*A, 7], session_id="s", retention=pause(10.0))
    assert driver.answers[name].ending == "length"
    evict_from_l1(driver)
    driver.drop_from_l2(driver.keys(A))
    driver.to_host.clear()
    driver.wait(7.51)
    [lookup] = [each for each in driver.to_host if isinstance(each, host.Lookup)]
    driver.fill_l2(A)
    driver.report_lookup(lookup.lookup_id, [PageSource.L3] * 8)
    driver.wait(BEGUN_S - 7.51)
    assert num_in_l1(driver) == 8


def test_a_load_begins_earlier_the_longer_it_takes() -> None:
    assert 0.0 < lead_s(0.0) < lead_s(1.0)
    assert lead_s(1.0) >= 2.0


def test_hundreds_of_sessions_for_which_there_is_no_room_keep_nobody_awake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = driver_with(num_pages=(40,), max_running_requests=1)
    for name in range(300):
        serve(driver, A, session_id=f"s{name}")
    evict_from_l1(driver)
    driver.host_turn()
    for name in range(300):
        hint = RetainSession(session_id=f"s{name}", retention=pause(10.0))
        driver.send(events.ClientMessage(client_id=CLIENT, message=hint))
    driver.wait(BEGUN_S - 0.04)
    driver.submit(B, max_tokens=9)
    driver.submit([*B, 1], max_tokens=9)
    looks: list[Spare] = []

    def look(num_l2_pages: int, spare: Spare) -> int:
        looks.append(spare)
        return num_early_pages(num_l2_pages, spare)

    monkeypatch.setattr(early_loads, "num_early_pages", look)
    for _ in range(26):
        driver.wait(0.05)
        driver.host_turn()
    driver.core.check()
    assert len(looks) <= 4 * 27, "four in fifty milliseconds, from a bit before they go on"
    assert len(looks) > 50


def test_pauses_that_end_long_before_their_time_leave_nothing_behind() -> None:
    driver = rest()
    for _ in range(1000):
        hint = RetainSession(session_id="s", retention=pause(1000.0))
        driver.send(events.ClientMessage(client_id=CLIENT, message=hint))
    driver.core.check()
    assert len(driver.core._timers) < 10


def test_nothing_is_loaded_for_a_session_while_memory_is_given_back_or_taken_again() -> None:
    """HostMemory is silent all that time, so that nothing that is asked for is over soon."""
    driver = rest()
    driver.send(events.FallAsleep(with_weights=False))
    assert driver.core.phase is Phase.GIVING_BACK
    driver.wait(BEGUN_S)
    driver.core.check()
    driver.lose_rank(0)
    driver.send(events.RanksGaveBack())
    assert driver.core.phase is Phase.ASLEEP
    driver.core.check()

    # It is late by then, and is brought all the same.
    driver.send(events.WakeUp())
    driver.attach_rank(0, incarnation=2)
    driver.wait(0.0)
    assert num_loaded(driver) == 1
    driver.host_turn()
    assert num_in_l1(driver) == 8
