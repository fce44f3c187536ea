"""What a Scheduler tells a client that chooses among several: its keys, and its load."""

from typing import Any

import pytest

from raydix.ids import ClientId, LookupId, SourceId
from raydix.runtime.cache.kv_index import KvIndex
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import LookupProgress, PageSource
from raydix.runtime.messages.kv_events import PagesStored, Tier
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound
from raydix.runtime.messages.routing import EngineNews, FollowEngine, NodeReport
from raydix.runtime.scheduler import events, key_news
from raydix.runtime.scheduler.load_report import INTERVAL_S, LEAST_S
from raydix.runtime.scheduler.phase import Phase
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver
from tests.runtime.scheduler.test_followers import PROMPT, keys_of

L1, L2 = (Tier.L1, 0), (Tier.L2, None)


class RoutedDriver(CoreDriver):
    """Keeps, besides, what the client is told that routes."""

    def __init__(self, **changes: Any) -> None:
        self.told: list[EngineNews] = []
        super().__init__(**changes)
        handle = self.core.handle

        def handle_and_note(event: events.Event, now_s: float) -> list[events.Effect]:
            effects = handle(event, now_s)
            for each in effects:
                if isinstance(each, events.SendNews) and each.client_id == CLIENT:
                    self.told.append(each.news)
            return effects

        self.core.handle = handle_and_note  # type: ignore[method-assign]

    def ask(self) -> list[EngineNews]:
        """Ask for news; what is told at once."""
        return self.told_by(events.ClientMessage(client_id=CLIENT, message=FollowEngine()))

    def wait(self, seconds: float) -> list[EngineNews]:
        """Let time pass; what is told by then."""
        self.now_s += seconds
        return self.told_by(events.Tick())

    def told_by(self, event: events.Event) -> list[EngineNews]:
        """What an event brings."""
        num = len(self.told)
        self.send(event)
        return self.told[num:]

    @property
    def index(self) -> KvIndex:
        """What the client knows by now."""
        index = KvIndex()
        for news in self.told:
            if news.is_anew:
                index = KvIndex()
            for event in news.events:
                index.follow(event)
        return index


def report_of(told: list[EngineNews]) -> NodeReport:
    [news] = told
    assert news.report is not None
    return news.report


def asked_later(driver: RoutedDriver) -> NodeReport:
    """The last report, once it is time for another one."""
    driver.wait(INTERVAL_S)
    driver.ask()
    driver.wait(INTERVAL_S)
    return [news.report for news in driver.told if news.report is not None][-1]


def test_the_first_answer_comes_at_once_and_tells_all_that_there_is() -> None:
    driver = RoutedDriver(has_host_memory=True)
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    driver.hear_host(MirrorUpdate(ready=keys_of(PROMPT)))

    [news] = driver.ask()

    assert news.is_anew
    assert news.is_whole
    for place in (L1, L2):
        assert driver.index.keys(place, 0) == set(split_keys(keys_of(PROMPT), 16))
    stored = [each for each in news.events if isinstance(each, PagesStored)]
    assert all(each.run is None for each in stored)
    assert news.report is not None
    assert (news.report.num_seen, news.report.busy_s, news.report.num_requests) == (0, 0.0, 0)
    assert news.report.page_size == 4


def test_changes_gather_until_it_is_time_and_come_with_the_report_behind_them() -> None:
    driver = RoutedDriver()
    driver.ask()
    assert not driver.ask()

    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    assert len(driver.told) == 1

    [news] = driver.wait(LEAST_S)
    assert not news.is_anew
    assert driver.index.keys(L1, 0) == set(split_keys(keys_of(PROMPT), 16))
    assert report_of([news]).num_seen == 1
    # It has not asked again.
    driver.submit([*PROMPT, 9, 10, 11, 12], max_tokens=1)
    driver.run()
    assert not driver.wait(LEAST_S)
    assert len(driver.ask()) == 1


def test_a_client_is_told_at_once_that_as_many_wait_as_may() -> None:
    driver = RoutedDriver(max_waiting_requests=2, max_running_requests=1)
    assert not report_of(driver.ask()).is_full
    driver.ask()
    driver.now_s += LEAST_S
    for first in (100, 200, 300):
        driver.submit(list(range(first, first + 8)), max_tokens=5)
        driver.ask()
        driver.wait(LEAST_S)
    assert report_of(driver.told[-1:]).is_full


def test_a_client_hears_how_long_a_slot_is_waited_for() -> None:
    driver = RoutedDriver(max_running_requests=2)
    assert report_of(driver.ask()).num_free_slots == 2
    for first in (100, 200, 300):
        driver.submit(list(range(first, first + 8)), max_tokens=50)
    for _ in range(8):
        driver.step()
    driver.ask()
    driver.ask()
    driver.wait(4.0)
    report = driver.told[-1].report
    assert report is not None
    # Two that have run for 4 s have as much before them, so that one ends each 4 s.
    assert report.num_free_slots == -1
    assert report.slot_s == pytest.approx(4.0, rel=0.2)
    assert report.slot_wait_s() == pytest.approx(8.0, rel=0.2)


def test_who_waits_is_told_of_work_that_comes_and_not_of_work_that_goes_as_foreseen() -> None:
    driver = RoutedDriver(prefill_budget_tokens=4)
    driver.ask()
    driver.ask()
    driver.now_s += LEAST_S

    driver.submit(list(range(60)), max_tokens=1)

    report = report_of(driver.told[1:])
    assert report.busy_s >= 0.05
    assert report.num_requests == 1
    assert report.arrivals_per_s > 0
    driver.ask()
    assert not driver.wait(LEAST_S / 2)


def test_an_idle_replica_says_now_and_then_that_it_is_there() -> None:
    driver = RoutedDriver()
    driver.ask()
    driver.ask()
    driver.wait(LEAST_S)

    deadline_s = driver.core.next_deadline_s()
    assert deadline_s is not None
    assert deadline_s <= INTERVAL_S
    assert report_of(driver.wait(INTERVAL_S)).interval_s == INTERVAL_S
    # Until it asks again nobody is woken.
    driver.wait(10 * INTERVAL_S)
    assert driver.core.next_deadline_s() is None


def test_requests_are_counted_by_client() -> None:
    driver = RoutedDriver()
    driver.ask()
    other = events.ClientMessage(client_id=ClientId("other"), message=FollowEngine())
    driver.send(other)
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    driver.ask()

    report = report_of(driver.wait(INTERVAL_S))
    assert (report.num_seen, report.num_ingresses) == (1, 2)
    driver.send(events.ClientGone(client_id=ClientId("other")))
    driver.ask()
    assert report_of(driver.wait(INTERVAL_S)).num_ingresses == 1


def test_who_does_not_ask_for_long_is_told_all_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(key_news, "_MAX_CHANGES", 3)
    driver = RoutedDriver(num_pages=(6,))
    driver.ask()
    for number in range(8):
        driver.submit([number, *PROMPT], max_tokens=1)
        driver.run()
    assert not driver.core._page_news.keys.is_followed

    driver.now_s += LEAST_S
    [news] = driver.ask()
    assert news.is_anew
    lane = driver.core._lanes[0]
    held = {key[:16] for node in lane.l1.tree.forest for key in split_keys(node.keys)}
    assert driver.index.keys(L1, 0) == held


def test_a_large_state_comes_in_pieces_one_for_each_time_it_is_asked_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(key_news, "_PIECE_BYTES", 32)
    driver = RoutedDriver()
    for number in range(4):
        driver.submit([number, *PROMPT], max_tokens=1)
        driver.run()
    pieces = driver.ask()
    while not pieces[-1].is_whole:
        pieces += driver.ask()

    assert len(pieces) > 2
    assert [each.is_anew for each in pieces] == [True] + [False] * (len(pieces) - 1)
    assert len(driver.index.keys(L1, 0)) == 8


def test_without_ranks_nothing_is_said_of_the_load() -> None:
    driver = RoutedDriver(is_attached=False)
    [news] = driver.ask()
    assert news.report is None


def test_half_of_a_prompt_counts_for_half_of_its_time_where_all_were_of_one_size() -> None:
    driver = RoutedDriver(prefill_budget_tokens=128, start_prefill_tokens_per_s=50_000.0)
    for number in range(8):
        driver.submit([number] * 64, max_tokens=1)
        while driver.plans[0] or not driver.core.is_idle:
            driver.step(seconds=0.1)
    prefill = asked_later(driver).prefill
    assert prefill.predict_s(64) == pytest.approx(0.1, rel=0.1)
    assert prefill.predict_s(32) == pytest.approx(0.05, rel=0.2)


def test_what_is_told_of_pulls_is_what_was_measured_though_most_peers_were_never_tried() -> None:
    driver = RoutedDriver(has_host_memory=True)
    for source in (2, 3, 4):
        driver.hear_host(PeerFound(source=SourceId(source), name=f"node {source}"))
    believed = report_of(driver.ask()).pull
    for num_pages in 8 * [100_000, 400_000]:
        brought = LookupProgress(
            lookup_id=LookupId(0),
            sources=(bytes([PageSource.PEER]) * num_pages,),
            is_final=True,
            source=SourceId(3),
            seconds=num_pages * 1e-6,
        )
        driver.core._source.origins.learn(brought, driver.settings, driver.now_s)

    measured = asked_later(driver).pull

    assert believed is not None
    assert measured is not None
    assert believed.unit_s < 1e-7
    assert measured.unit_s == pytest.approx(1e-6, rel=0.1)


def test_figures_tell_the_time_that_a_request_would_wait_as_reports_do() -> None:
    driver = RoutedDriver(prefill_budget_tokens=4)
    driver.submit(PROMPT, max_tokens=1)
    report = report_of(driver.ask())
    assert report.busy_s > 0.0
    assert driver.core.stats()["prompt_wait_s"] == report.busy_s


def test_an_engine_that_sleeps_or_is_about_to_tells_so_at_once() -> None:
    driver = RoutedDriver()
    driver.ask()
    driver.ask()
    driver.submit(PROMPT, max_tokens=8)
    driver.send(events.FallAsleep(with_weights=False))
    assert report_of(driver.wait(LEAST_S)).is_asleep

    driver.run()
    driver.lose_rank(0)
    driver.send(events.RanksGaveBack())
    assert driver.core.phase is Phase.ASLEEP
    assert asked_later(driver).is_asleep

    driver.send(events.WakeUp())
    driver.attach_rank(0)
    assert not asked_later(driver).is_asleep
