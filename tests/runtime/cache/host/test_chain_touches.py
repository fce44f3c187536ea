"""Touches are put off no longer than until a page may make way for another."""

import pytest

from raydix.ids import SEVERAL_USERS, ConnectionId, LeaseId, LookupId
from raydix.runtime.cache.host.chain_touches import ChainTouches
from raydix.runtime.cache.host.events import FromScheduler, HostEvent, Tick
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.messages.host import CancelLookup, LeasePages, ReleaseLeases
from tests.runtime.cache.host.index_pages import key, make_geometry, publish

LINK = ConnectionId(1)
QUICK: list[HostEvent] = [
    FromScheduler(LINK, LeasePages(lease_id=LeaseId(1), keys=b"", starts=(0,))),
    FromScheduler(LINK, CancelLookup(lookup_id=LookupId(1))),
]
OTHERS: list[HostEvent] = [Tick(), FromScheduler(LINK, ReleaseLeases(lease_ids=()))]


def touched() -> ChainTouches:
    """The touches of an index with the pages 0 and 1, of which 0 was used since."""
    index = HostIndex(make_geometry(1, (2,)))
    for name in range(2):
        publish(index, name)
    touches = ChainTouches(index)
    touches.add([key(0)], SEVERAL_USERS)
    return touches


@pytest.mark.parametrize("event", QUICK)
def test_what_usually_follows_a_lookup_is_not_held_up(event: HostEvent) -> None:
    touches = touched()
    touches.prepare_for(event)
    assert touches.has_work


@pytest.mark.parametrize("event", OTHERS)
def test_before_a_page_may_make_way_the_use_counts(event: HostEvent) -> None:
    touches = touched()
    touches.prepare_for(event)
    assert not touches.has_work
    index = touches._index
    index.allocate(0)
    assert index.find(0, key(0)) is not None
    assert index.find(0, key(1)) is None, "it was not used for longer"


def test_what_many_lookups_have_used_does_not_wait_for_one_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_touched: list[int] = []
    monkeypatch.setattr(
        HostIndex, "touch_chain", lambda _, group, keys, user: num_touched.append(1)
    )
    touches = ChainTouches(HostIndex(make_geometry(1, (4,))))
    for _ in range(10_000):
        touches.add([key(name) for name in range(16)], SEVERAL_USERS)

    num_touched.clear()
    touches.catch_up()
    assert 1 <= len(num_touched) <= 128, "of 16 pages each"
