"""What a Scheduler tells those who follow its caches."""

from typing import Any

import pytest

from raydix.ids import L3_SOURCE, ConnectionId
from raydix.runtime.cache.kv_index import KvIndex
from raydix.runtime.cache.page_key import (
    MIRROR_KEY_BYTES,
    ChainKeys,
    extend_keys,
    pack_tokens,
    root_key,
    short_keys,
    split_keys,
)
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.kv_events import PagesStored, ShortKeys, Tier, TierCleared
from raydix.runtime.messages.mirror import MirrorCleared, MirrorUpdate
from raydix.runtime.messages.plan import StepResult
from raydix.runtime.scheduler import events, page_news
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(9))
L1, L2, L3 = (Tier.L1, 0), (Tier.L2, None), (Tier.L3, None)


def keys_of(tokens: list[int], salt: str | None = None) -> ShortKeys:
    """The short keys of the full pages of a chain."""
    keys = extend_keys(root_key(cache_salt=salt), pack_tokens(tokens), 4)
    return ShortKeys(short_keys(keys))


class FollowedDriver(CoreDriver):
    """Hears, besides, what followers are told."""

    def __init__(self, **changes: Any) -> None:
        self.told: list[events.TellFollower] = []
        super().__init__(**changes)
        handle = self.core.handle

        def handle_and_note(event: events.Event, now_s: float) -> list[events.Effect]:
            effects = handle(event, now_s)
            self.told += [each for each in effects if isinstance(each, events.TellFollower)]
            return effects

        self.core.handle = handle_and_note  # type: ignore[method-assign]


def followed(**changes: Any) -> FollowedDriver:
    """A Scheduler that is followed from its start."""
    driver = FollowedDriver(**changes)
    driver.send(events.FollowerAttached(connection=ConnectionId(900)))
    return driver


def index_of(driver: FollowedDriver, connection: int = 900) -> KvIndex:
    """What a follower knows by now."""
    index = KvIndex()
    for told in driver.told:
        for event in told.events if told.connection == connection else ():
            index.follow(event)
    return index


def stored(driver: FollowedDriver, tier: Tier) -> list[PagesStored]:
    """The pages that were told to be in a tier, as they came."""
    return [
        event
        for told in driver.told
        for event in told.events
        if isinstance(event, PagesStored) and event.tier is tier
    ]


def test_a_page_is_told_once_it_is_computed_and_with_what_it_holds() -> None:
    driver = followed()
    driver.submit(PROMPT, cache_salt="salt", max_tokens=1)
    assert not stored(driver, Tier.L1)

    driver.run()

    [event] = stored(driver, Tier.L1)
    assert event.keys == keys_of(PROMPT, "salt")
    assert event.run is not None
    assert event.run.parent is None
    assert event.run.packed_tokens == pack_tokens(PROMPT[:8])
    assert event.run.cache_salt == "salt"


def test_what_follows_a_page_names_it_as_its_parent() -> None:
    driver = followed()
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    driver.submit([*PROMPT, 9, 10, 11, 12], max_tokens=1)
    driver.run()

    _, event = stored(driver, Tier.L1)
    assert event.run is not None
    assert event.run.parent == keys_of(PROMPT)[-MIRROR_KEY_BYTES:]
    assert event.run.packed_tokens == pack_tokens([8, 9, 10, 11])


def test_l2_has_a_page_once_it_is_published_there() -> None:
    driver = followed(has_host_memory=True)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    while driver.plans[0]:
        driver.step()
        driver.finish_copies()
    # The commit is on its way: L2 counts on it, and nobody is told.
    assert driver.core._source.view.keys.has_page(0, ChainKeys(keys_of(PROMPT)), 0)
    assert not stored(driver, Tier.L2)

    driver.run()
    driver.hear_host(MirrorUpdate(ready=keys_of(PROMPT)))

    index = index_of(driver)
    assert index.keys(L2, 0) == set(split_keys(keys_of(PROMPT), MIRROR_KEY_BYTES))
    driver.hear_host(MirrorUpdate(dropped=keys_of(PROMPT)[MIRROR_KEY_BYTES:]))
    assert index_of(driver).count_leading(L2, 0, keys_of(PROMPT)) == 1


def test_what_dies_loses_all_its_pages_once() -> None:
    driver = followed(num_lanes=2, has_host_memory=True)
    for prompt in (PROMPT, [50, *PROMPT]):
        driver.submit(prompt, max_tokens=1)
    driver.run()
    driver.hear_host(MirrorUpdate(source=L3_SOURCE, ready=keys_of(PROMPT)))
    index = index_of(driver)
    assert {place for place in index.places if index.groups(place)} == {L1, (Tier.L1, 1), L2, L3}

    driver.lose_rank(0)
    assert not index_of(driver).groups(L1)
    assert index_of(driver).groups((Tier.L1, 1))
    driver.hear_host(MirrorCleared(source=L3_SOURCE))
    driver.lose_host()
    driver.attach_rank(0)

    index = index_of(driver)
    assert not index.groups(L2)
    assert not index.groups(L3)
    cleared = [
        event for told in driver.told for event in told.events if isinstance(event, TierCleared)
    ]
    assert [(event.tier, event.lane) for event in cleared] == [(Tier.L1, 0), L3, L2]


def test_who_comes_late_is_told_what_there_is_before_what_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_news, "_PIECE_BYTES", 1)
    driver = followed(has_host_memory=True)
    for first in range(4):
        driver.submit([first * 20 + token for token in range(9)], max_tokens=1, cache_salt="s")
        driver.run()
    late = ConnectionId(901)
    driver.send(events.FollowerAttached(connection=late))
    driver.send(events.FlushL1())
    told = [each for each in driver.told if each.connection == late]
    assert not told[0].is_whole

    driver.wait(1.0)

    told = [each for each in driver.told if each.connection == late]
    assert told[-1].is_whole
    assert index_of(driver, late).groups(L2) == index_of(driver).groups(L2) != {}
    assert index_of(driver, late).groups(L1) == index_of(driver).groups(L1) == {}
    first = told[0].events[0]
    assert isinstance(first, PagesStored)
    assert first.run is not None
    assert first.run.cache_salt == "s"


@pytest.mark.parametrize("is_first", [True, False])
def test_who_comes_in_the_turn_of_a_change_is_told_of_it_once(is_first: bool) -> None:
    driver = followed()
    driver.submit(PROMPT, max_tokens=2)
    plan = driver.plans[0].popleft()
    done = events.RankMessage(
        rank=0,
        connection=driver.connection_of(0),
        message=StepResult(rank=0, step=plan.step, token_ids=int32_array([1]), compute_s=0.01),
    )
    late = ConnectionId(901)
    heard = [events.FollowerAttached(connection=late), done]
    first, last = heard if is_first else reversed(heard)

    driver.core.hear(first, driver.now_s)
    driver.send(last)
    driver.run()

    for connection in (ConnectionId(900), late):
        told = [each for each in driver.told if each.connection == connection]
        keys = [event.keys for each in told for event in each.events]
        assert keys == [keys_of(PROMPT)]
        assert told[-1].is_whole


def test_nothing_is_kept_for_nobody() -> None:
    driver = FollowedDriver()
    driver.send(events.FollowerAttached(connection=ConnectionId(900)))
    driver.send(events.FollowerLost(connection=ConnectionId(900)))
    driver.told.clear()
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    assert not driver.told
    assert not driver.core._page_news._changes


def test_salts_of_chains_that_are_gone_are_forgotten() -> None:
    driver = followed(num_pages=(6,))
    for number in range(200):
        driver.submit(PROMPT, max_tokens=1, cache_salt=f"salt {number}")
        driver.run()
    assert len(driver.core._lanes[0].l1.news._salts) < 100
