"""The rules of the index of L2, one by one."""

from collections.abc import Callable

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.host.pages import HostPageState
from tests.runtime.cache.host.host_world import ready_keys
from tests.runtime.cache.host.index_pages import key, make_geometry, publish


def test_all_pages_are_handed_out_once_and_then_none() -> None:
    index = HostIndex(make_geometry(2, (4,)))
    taken = [index.allocate(0) for _ in range(8)]
    assert sorted(page for page in taken if page is not None) == list(range(8))
    assert index.allocate(0) is None
    for page in taken:
        assert page is not None
        index.free(page)
    assert len({index.allocate(0) for _ in range(8)} - {None}) == 8
    index.check()


def test_oldest_unread_page_makes_room() -> None:
    index = HostIndex(make_geometry(1, (3,)))
    for name in "abc":
        publish(index, name)
    index.touch_chain(0, [key("a")])
    publish(index, "d")
    assert index.find(0, key("b")) is None
    assert index.find(0, key("a")) is not None
    ready, dropped = index.take_changes(0)
    assert set(ready) == {key("a"), key("c"), key("d")}
    assert dropped == [key("b")]


def test_touched_chain_loses_its_tail_first() -> None:
    index = HostIndex(make_geometry(1, (4,)))
    for name in range(4):
        publish(index, name)
    index.touch_chain(0, [key(name) for name in range(4)])
    for num_left in (3, 2, 1):
        index.allocate(0)
        assert [name for name in range(4) if index.find(0, key(name)) is not None] == list(
            range(num_left)
        )


def test_first_committed_copy_of_a_name_wins() -> None:
    index = HostIndex(make_geometry(1, (2,)))
    first = publish(index, "a")
    second = index.allocate(0)
    assert second is not None
    assert not index.publish(second, key("a"))
    assert index.find(0, key("a")) == first
    assert index.state(second) is HostPageState.FREE


def test_generation_rises_whenever_a_page_changes_hands() -> None:
    index = HostIndex(make_geometry(1, (1,)), np.array([2**31 - 2], dtype=np.int32))
    publish(index, "a")
    assert index.generation(HostPageId(0)) == 2**31 - 1
    publish(index, "b")
    assert index.generation(HostPageId(0)) == 1, "0 is left to pages that were never handed out"
    assert not index.is_filling(0, 1)
    assert not index.is_filling(10**6, 0)


def test_quarantined_page_is_not_handed_out_until_freed() -> None:
    index = HostIndex(make_geometry(1, (1,)))
    page = index.allocate(0)
    assert page is not None
    index.quarantine(page)
    assert index.allocate(0) is None
    index.check()
    index.free(page)
    assert index.allocate(0) == page


MISUSES: dict[str, Callable[[HostIndex, HostPageId, HostPageId], object]] = {
    "free twice": lambda index, free, ready: index.free(free),
    "free ready": lambda index, free, ready: index.free(ready),
    "publish free": lambda index, free, ready: index.publish(free, key("b")),
    "unpin": lambda index, free, ready: index.unpin([ready]),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_accounting_error(misuse: str) -> None:
    index = HostIndex(make_geometry(1, (4,)))
    free, ready = index.allocate(0), publish(index, "a")
    assert free is not None
    index.free(free)
    with pytest.raises(AccountingError):
        MISUSES[misuse](index, free, ready)


def test_starved_group_takes_the_least_recently_used_slab_that_nobody_holds() -> None:
    index = HostIndex(make_geometry(3, (4, 2)))
    for name in range(12):
        publish(index, name)
    assert index.find(0, key(11)) is not None
    HostLeases(index).lease(LeaseId(1), [key(0)], (0, 1))
    index.touch_chain(0, [key(4)])
    index.take_changes(0)
    publish(index, "other group", group=1)
    _, dropped = index.take_changes(0)
    assert dropped == [key(name) for name in range(8, 12)]
    index.check()


def test_group_grows_at_the_cost_of_anothers_older_pages() -> None:
    index = HostIndex(make_geometry(4, (4, 2)))
    for name in range(2):
        publish(index, name, group=1)
    for name in range(12):
        publish(index, name)
    for name in range(2, 4):
        publish(index, name, group=1)
    assert index.num_slabs_taken == 0, "the group's own first page was older than all others"
    assert [index.find(1, key(name)) for name in range(2)] == [None, None]

    index.touch_chain(0, [key(name) for name in range(4, 12)])
    publish(index, "newer than slab 0 of the other group", group=1)
    assert index.num_slabs_taken == 1
    assert [index.find(0, key(name)) for name in range(4)] == [None] * 4
    assert all(index.find(1, key(name)) is not None for name in range(2, 4))
    index.check()


def test_slab_goes_back_only_after_every_page_of_the_other_group_was_used_again() -> None:
    index = HostIndex(make_geometry(2, (4, 4)))
    for name in range(8):
        publish(index, name)
    publish(index, 0, group=1)
    assert index.num_slabs_taken == 1
    for turn in range(40):
        publish(index, f"a{turn}")
        publish(index, f"b{turn}", group=1)
        index.check()
    assert index.num_slabs_taken == 1, "groups that are used alike do not take slabs in turn"

    for turn in range(8):
        publish(index, f"c{turn}")
    assert index.num_slabs_taken == 2, "a group that is used no more gives way"
    assert ready_keys(index, 1) == set()


def test_slab_without_a_ready_page_goes_first() -> None:
    index = HostIndex(make_geometry(3, (4, 2)))
    pages = [publish(index, name) for name in range(12)]
    for page in pages[8:]:
        index.drop_unread(page)
    index.take_changes(0)
    publish(index, "other group", group=1)
    assert index.take_changes(0) == ([], [])
    index.check()


def test_slab_that_was_given_back_unpublished_counts_as_used_then() -> None:
    index = HostIndex(make_geometry(2, (2, 1)))
    for name in range(4):
        publish(index, name)
    index.drop_unread(HostPageId(0))
    page = index.allocate(0)
    assert page == 0
    index.free(page)
    index.touch_chain(0, [key(3), key(2)])
    publish(index, "other group", group=1)
    assert index.find(0, key(1)) is None
    assert [index.find(0, key(name)) is not None for name in (2, 3)] == [True, True]
    index.check()


def test_starved_group_takes_nothing_from_slabs_in_use() -> None:
    index = HostIndex(make_geometry(2, (4, 2)))
    for name in range(8):
        publish(index, name)
    HostLeases(index).lease(LeaseId(1), [key(name) for name in range(8)], (0, 8))
    assert index.allocate(1) is None
    assert index.find(0, key(5)) is not None


def test_key_that_came_and_went_is_reported_once() -> None:
    index = HostIndex(make_geometry(1, (1,)))
    publish(index, "a")
    publish(index, "b")
    publish(index, "a")
    assert index.take_changes(0) == ([key("a")], [key("b")])
    assert index.take_changes(0) == ([], [])


def test_check_finds_a_lost_page() -> None:
    index = HostIndex(make_geometry(1, (2,)))
    publish(index, "a")
    index._evictable.remove(0, HostPageId(0))
    with pytest.raises(AccountingError, match="evictable"):
        index.check()
