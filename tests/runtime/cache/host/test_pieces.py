"""Thousands of lookups end some at a time, however they end, and each of them once."""

from collections.abc import Callable
from typing import Any

import pytest

from raydix.runtime.cache.host.events import RetireStorage, Tick
from raydix.runtime.cache.host.lookup_pages import LookupPages
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.messages.host import PageSource
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

NUM_LOOKUPS = 600
NAMES = [f"lookup{number}" for number in range(NUM_LOOKUPS)]
PIECE = 256


def crowded() -> HostScript:
    """Storage was asked about many chains of four pages and has not answered."""
    host = with_storage()
    for number, name in enumerate(NAMES):
        host.lookup(name, range(4 * number, 4 * number + 4))
    return host


def num_final(host: HostScript) -> int:
    return sum(map(host.is_final, NAMES))


def be_late(host: HostScript) -> None:
    host.now_s += 1e6
    host.tell(Tick())


def retire(host: HostScript) -> None:
    host.tell(RetireStorage())


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (HostScript.lose_storage, PageSource.IO_ERROR),
        (retire, PageSource.CANCELLED),
        (be_late, PageSource.TIMED_OUT),
    ],
)
def test_no_event_ends_all_lookups(act: Callable[[HostScript], None], reason: PageSource) -> None:
    host = crowded()
    act(host)
    ended = [num_final(host)]
    while (due_s := host.core.next_deadline_s()) is not None and due_s <= host.now_s:
        host.tell(Tick())
        ended.append(num_final(host))
    assert ended[0] > 0
    assert max(after - before for before, after in zip([0, *ended], ended, strict=False)) <= PIECE
    assert all(host.sources(name) == [reason] * 4 for name in NAMES)
    assert host.stat("lookups") == 0


def test_lookups_of_a_lost_storage_ask_nothing_of_the_next_one() -> None:
    host = crowded()
    host.lose_storage()
    host.attach_storage(51)
    host.store(range(4))
    host.lookup("new", range(4))
    assert len(host.orders) == 1
    host.tick_while_due()
    assert num_final(host) == NUM_LOOKUPS
    host.answer_all()
    assert host.sources("new") == [PageSource.L3] * 4


def test_lookups_without_room_in_l2_fail_some_at_a_time() -> None:
    host = crowded()
    host.store(range(4 * NUM_LOOKUPS))
    before = 0
    while host.orders:
        host.answer()
        after = num_final(host)
        assert after - before <= PIECE
        before = after
    host.tick_while_due()
    assert num_final(host) == NUM_LOOKUPS
    assert host.stat("pages_reading") == 0


@pytest.mark.parametrize("num_pages", [4, 32], ids=["one read", "many reads"])
def test_no_event_tells_all_lookups_of_pages_that_they_share(
    num_pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = with_storage()
    host.store(range(num_pages))
    for name in NAMES:
        host.lookup(name, range(num_pages))
    arrived: list[int] = []
    arrive = LookupPages.arrive

    def count(*arguments: Any) -> None:
        arrived[-1] += 1
        arrive(*arguments)

    monkeypatch.setattr(LookupPages, "arrive", count)
    while host.orders:
        arrived.append(0)
        host.answer()
        while host.core.next_deadline_s() == host.now_s:
            arrived.append(0)
            host.tell(Tick())
    assert sum(arrived) == num_pages * NUM_LOOKUPS
    # One read tells few lookups, and the others are looked at for so many pages.
    assert max(arrived) <= 64 * STORAGE.batch_pages + PIECE * 8
    assert all(host.sources(name) == [PageSource.L3] * num_pages for name in NAMES)


def test_whoever_is_stopped_looks_at_few_of_those_that_wait_for_the_same_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = with_storage()
    host.store(range(32))
    for name in NAMES:
        host.lookup(name, range(32))
    for _ in NAMES:
        host.answer()
    assert host.stat("pages_reading") == STORAGE.batch_pages * STORAGE.max_read_batches

    num_looks = 0
    is_waiting_for = OpenLookup.is_waiting_for

    def count(lookup: OpenLookup, group: int, index: int) -> bool:
        nonlocal num_looks
        num_looks += 1
        return is_waiting_for(lookup, group, index)

    monkeypatch.setattr(OpenLookup, "is_waiting_for", count)
    retire(host)
    host.tick_while_due()
    assert num_final(host) == NUM_LOOKUPS
    # Those that wait look at the newest for each read, and the last of them at all, once.
    assert num_looks <= 8 * NUM_LOOKUPS
