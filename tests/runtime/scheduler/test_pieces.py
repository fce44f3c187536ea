"""What concerns all that wait is done piece by piece, and nobody gains or loses by that."""

from itertools import pairwise
from typing import Any

import pytest

from raydix.ids import ClientId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import empty
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

NUM_WAITING = 1000
OTHER = ClientId("other")
pytestmark = pytest.mark.usefixtures("rare_checks")


def crowded(**fields: Any) -> CoreDriver:
    """One request runs, and many wait."""
    driver = CoreDriver(max_running_requests=1, max_waiting_requests=NUM_WAITING, num_pages=(64,))
    for number in range(NUM_WAITING):
        driver.submit([number, *range(8)], max_tokens=1, **fields)
    return driver


def calls_by_event(
    monkeypatch: pytest.MonkeyPatch, driver: CoreDriver, owner: type, method: str
) -> list[int]:
    """How often each event from now on calls a method; the list grows."""
    counts: list[int] = []
    handle, called = driver.core.handle, getattr(owner, method)

    def count(*arguments: Any, **named: Any) -> Any:
        counts[-1] += 1
        return called(*arguments, **named)

    def start(event: events.Event, now_s: float) -> list[events.Effect]:
        counts.append(0)
        return handle(event, now_s)

    monkeypatch.setattr(owner, method, count)
    monkeypatch.setattr(driver.core, "handle", start)
    return counts


def test_pieces_keep_their_order_and_go_on_with_ticks_alone() -> None:
    done: list[int] = []
    pieces = Pieces()
    pieces.add(done.append, range(300))
    pieces.add(done.append, range(300, 600))
    assert done == [*range(256)]
    while pieces.has_work:
        pieces.advance()
    assert done == [*range(600)]


def test_pieces_of_the_same_are_done_once_and_those_that_are_left_first() -> None:
    done: list[int] = []
    items = [object() for _ in range(600)]
    places = {item: place for place, item in enumerate(items)}
    pieces = Pieces()

    def act(item: object) -> None:
        done.append(places[item])

    for _ in range(3):
        pieces.add(act, items)
    while pieces.has_work:
        pieces.advance()
    assert done == [*range(600), *range(256)]


def test_news_that_come_again_and_again_make_no_work_without_end() -> None:
    driver = CoreDriver(
        max_running_requests=1, max_waiting_requests=NUM_WAITING, has_host_memory=True
    )
    for number in range(NUM_WAITING):
        driver.submit([number, *range(8)], max_tokens=1)
    for number in range(100):
        driver.hear_host(host.StorageStatus(is_in_use=bool(number % 2), max_staged_pages=(1000,)))
    num_ticks = 0
    while driver.core._pieces.has_work:
        driver.send_tick()
        num_ticks += 1
    assert num_ticks <= NUM_WAITING // 256 + 2


def test_no_event_ends_all_requests_of_a_client_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = crowded()
    counts = calls_by_event(monkeypatch, driver, Transitions, "end")
    driver.send(events.ClientGone(client_id=CLIENT))
    assert driver.core.stats()["num_requests_waiting"] == 0
    assert driver.core._requests.living
    driver.wait(0.0)
    assert not driver.core._requests.living
    assert sum(counts) == NUM_WAITING
    assert max(counts) <= 257


def test_no_request_of_a_client_that_is_gone_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = crowded()
    driver.submit([5, 6, 7], max_tokens=1, name="of another", client=OTHER)
    counts = calls_by_event(monkeypatch, driver, Transitions, "admit")
    driver.send(events.ClientGone(client_id=CLIENT))
    driver.wait(0.0)
    driver.run()
    assert driver.answers["of another"].ending == "length", "it waited behind all the others"
    assert sum(counts) == 1
    assert not driver.core._requests.living


@pytest.mark.parametrize("is_stopped", [False, True], ids=["too late", "engine stops"])
def test_nobody_is_failed_whose_client_is_gone(is_stopped: bool) -> None:
    driver = crowded(deadline_s=1.0)
    driver.send(events.ClientGone(client_id=CLIENT))
    driver.now_s += 2.0
    if is_stopped:
        driver.send(events.EndRequests())
    driver.wait(0.0)
    assert not driver.core._requests.living
    assert not driver.endings
    assert driver.core.stats()["finished_abort"] == NUM_WAITING


def test_a_client_that_comes_back_may_use_all_its_names_again() -> None:
    driver = crowded()
    driver.send(events.ClientGone(client_id=CLIENT))
    for number in range(NUM_WAITING):
        driver.submit([number, *range(8)], max_tokens=1, name=f"r{number + 1}", client=OTHER)
    driver.wait(0.0)
    driver.run()
    assert [answer.ending for answer in driver.answers.values()] == ["length"] * NUM_WAITING


def test_no_tick_ends_all_requests_whose_deadline_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = crowded(deadline_s=1.0)
    counts = calls_by_event(monkeypatch, driver, Transitions, "end")
    driver.now_s += 2.0
    driver.wait(0.0)
    endings = [answer.ending for answer in driver.answers.values()]
    assert endings == ["DeadlineExceeded"] * NUM_WAITING
    assert max(counts) <= 256


def test_no_event_wakes_all_that_wait_when_hostmemory_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoreDriver(
        max_running_requests=1, max_waiting_requests=NUM_WAITING, has_host_memory=True
    )
    for number in range(NUM_WAITING):
        driver.submit([number, *range(8)], max_tokens=1)
    counts = calls_by_event(monkeypatch, driver, WaitingQueue, "wake")
    driver.lose_host()
    driver.wait(0.0)
    assert sum(counts) >= NUM_WAITING - 1
    assert max(counts) <= 256
    driver.run()
    assert [answer.ending for answer in driver.answers.values()] == ["length"] * NUM_WAITING


def test_no_tick_gives_up_all_questions_to_a_silent_hostmemory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoreDriver(
        max_running_requests=1,
        max_waiting_requests=NUM_WAITING,
        has_host_memory=True,
        max_staged_pages=10 * NUM_WAITING,
        lookup_deadline_s=1.0,
    )
    for number in range(NUM_WAITING):
        driver.submit([number, *range(8)], max_tokens=1)
    driver.send_tick()
    counts = calls_by_event(monkeypatch, driver, KvSource, "cancel_lookup")
    driver.now_s += 2.0
    driver.wait(0.0)
    assert driver.core.stats()["lookups_open"] == 0
    assert sum(counts) >= NUM_WAITING - 1
    assert max(counts) <= 260


def test_answers_that_come_before_they_are_given_up_count() -> None:
    driver = CoreDriver(
        max_running_requests=1,
        max_waiting_requests=NUM_WAITING,
        has_host_memory=True,
        max_staged_pages=10 * NUM_WAITING,
        lookup_deadline_s=1.0,
    )
    names = [driver.submit([number, *range(8)], max_tokens=1) for number in range(NUM_WAITING)]
    driver.send_tick()
    driver.now_s += 2.0
    driver.send_tick()
    driver.report_lookup(names[-1], [PageSource.L2, PageSource.PENDING])
    driver.wait(0.0)
    assert driver.core._source._lookups.askers() == [driver.core._requests.living[names[-1]]]


def test_no_event_frees_all_keys_of_an_l2_that_is_lost() -> None:
    driver = CoreDriver(has_host_memory=True)
    num_keys = 40_000
    ready = b"".join(number.to_bytes(MIRROR_KEY_BYTES, "big") for number in range(num_keys))
    driver.hear_host(host.MirrorUpdate(ready=ready))
    keys = driver.core._source.view.keys._groups[0]
    driver.lose_host()
    assert driver.core.stats()["l2_known_pages"] == 0
    left = [num_keys, len(keys)]
    while driver.core._pieces.has_work:
        driver.send_tick()
        left.append(len(keys))
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 256 * 64


def test_no_event_wakes_all_that_lack_a_page_which_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoreDriver(
        has_host_memory=True,
        max_waiting_requests=NUM_WAITING,
        prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE),
    )
    driver.hear_host(host.StorageStatus(is_in_use=True, max_staged_pages=(1000,)))
    for number in range(NUM_WAITING):
        name = driver.submit([*range(8), number], max_tokens=1)
        driver.report_lookup(name, [PageSource.PENDING] * 2)
    driver.wait(0.0)
    waiting = driver.core._lanes[0].waiting
    assert not waiting.has_turns
    counts = calls_by_event(monkeypatch, driver, WaitingQueue, "wake")
    driver.fill_l2([*range(4)])
    driver.wait(0.0)
    assert sum(counts) >= NUM_WAITING
    # With an event up to three plans are drafted.
    assert max(counts) <= 3 * 256


def test_a_walk_goes_on_when_nothing_else_is_left_and_only_until_it_is_done() -> None:
    done: list[int] = []
    pieces = Pieces()

    def go_on() -> bool:
        done.append(-1)
        return done.count(-1) == 3

    pieces.add(done.append, range(300))
    pieces.walk(go_on)
    pieces.walk(go_on)
    while pieces.has_work:
        pieces.advance()
    assert done == [*range(300), -1, -1, -1]


def test_of_what_weighs_more_a_piece_has_less() -> None:
    done: list[int] = []
    pieces = Pieces()
    pieces.add(done.append, range(100), weight=8)
    assert done == [*range(32)]


def filled(monkeypatch: pytest.MonkeyPatch, *, num_lanes: int) -> CoreDriver:
    """L1 of each lane holds some 300 prompts. Not checked in between, for that takes minutes."""
    driver = CoreDriver(num_pages=(3000,), num_lanes=num_lanes, max_waiting_requests=1000)
    with monkeypatch.context() as patch:
        patch.setattr(driver.core, "check", lambda: None)
        for number in range(300 * num_lanes):
            driver.submit([number, *range(8)], max_tokens=1)
        driver.run()
    return driver


def test_no_event_flushes_all_of_l1_and_requests_are_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = filled(monkeypatch, num_lanes=2)
    lanes = driver.core._lanes
    before = [lane.l1.tree.num_nodes for lane in lanes]
    assert min(before) > 256
    flushed: list[int] = []
    handle = driver.core.handle

    def listen(event: events.Event, now_s: float) -> list[events.Effect]:
        effects = handle(event, now_s)
        flushed.extend(one.num_pages for one in effects if isinstance(one, events.L1Flushed))
        return effects

    monkeypatch.setattr(driver.core, "handle", listen)

    num_cached = sum(lane.l1.tree.num_cached_pages(0) for lane in lanes)
    driver.send(events.FlushL1())
    left = [sum(before), sum(lane.l1.tree.num_nodes for lane in lanes)]
    name = driver.submit([5000, *range(8)], max_tokens=2)
    while not flushed:
        driver.send_tick()
        left.append(sum(lane.l1.tree.num_nodes for lane in lanes))
    assert max(earlier - later for earlier, later in pairwise(left)) <= 256
    assert flushed == [num_cached]
    driver.run()
    assert driver.answers[name].ending == "length"
    assert sum(lane.l1.tree.num_cached_pages(0) for lane in lanes) == 2, "what came meanwhile"


def test_a_flush_of_a_lane_that_loses_its_rank_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = filled(monkeypatch, num_lanes=1)
    driver.send(events.FlushL1())
    driver.lose_rank(0)
    driver.wait(0.0)
    assert not driver.core._pieces.has_work


def decoding(num_requests: int) -> CoreDriver:
    """Many requests decode."""
    driver = CoreDriver(
        max_running_requests=num_requests, num_pages=(2000,), prefill_budget_tokens=2048
    )
    for number in range(num_requests):
        driver.submit([number, *range(8)], max_tokens=50)
    for _ in range(6):
        driver.step()
    assert len(driver.core._lanes[0].batch) == num_requests
    return driver


def test_no_event_ends_all_that_decode_for_a_client_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = decoding(100)
    other = driver.submit([5000, 6, 7], max_tokens=3, client=OTHER)
    counts = calls_by_event(monkeypatch, driver, Transitions, "end")
    driver.send(events.ClientGone(client_id=CLIENT))
    driver.submit([1, 2, 3], max_tokens=3, name="r1", client=OTHER)
    driver.step()
    driver.wait(0.0)
    assert sum(counts) == 100
    assert max(counts) <= 33
    driver.run()
    assert driver.answers[other].ending == "length"
    assert driver.answers["r1"].ending == "length", "its name was free at once"
    assert driver.core.is_idle


def test_orphans_that_decode_end_although_their_rank_is_lost() -> None:
    driver = decoding(100)
    driver.send(events.ClientGone(client_id=CLIENT))
    assert driver.core.stats()["num_requests_running"] > 0
    driver.lose_rank(0)
    assert driver.core.stats()["num_requests_waiting"] == 0
    driver.attach_rank(0, incarnation=2)
    driver.wait(0.0)
    assert driver.core.is_idle


def test_what_runs_on_a_lost_rank_is_not_published_or_given_back_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = decoding(100)
    names = list(driver.core._requests.living)
    counts = calls_by_event(monkeypatch, driver, Lane, "release")
    driver.lose_rank(0)
    assert sum(counts) == 0
    driver.attach_rank(0, incarnation=2)
    driver.run()
    assert all(driver.answers[name].tokens == [1] * 50 for name in names)


def test_who_is_given_up_after_it_was_woken_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydix.runtime.scheduler.pieces._PIECE", 2)
    driver = CoreDriver(
        has_host_memory=True,
        lookup_deadline_s=1.0,
        prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE),
    )
    names = [driver.submit([number, *range(4)], max_tokens=1) for number in range(9)]
    driver.send_tick()
    driver.now_s += 2.0
    # They are still being woken when it turns out that HostMemory owes answers, and is there.
    status = host.StorageStatus(is_in_use=True, max_staged_pages=(1000,))
    driver.hear_host(status)
    driver.send_tick()
    assert driver.core.stats()["host_silences"] == 1
    driver.to_host.clear()
    driver.hear_host(host.PagesGranted(host_page_ids=empty(), generations=empty()))
    driver.wait(0.0)
    driver.run()
    assert sorted(driver.endings) == names
