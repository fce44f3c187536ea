"""The index of L2 against a naive model, and its rules one by one."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId, PageKey
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.host.pages import HostPageState
from tests.runtime.cache.host.host_world import ready_keys


def make_geometry(num_slabs: int, slab_pages: tuple[int, ...]) -> ArenaGeometry:
    """Slabs that hold `slab_pages[g]` pages of group g."""
    page_bytes = tuple(1024 // pages for pages in slab_pages)
    return ArenaGeometry(
        num_slabs=num_slabs,
        slab_bytes=1024,
        slabs_offset=4096,
        pages_per_slab=max(slab_pages),
        page_bytes=page_bytes,
        payload_bytes=tuple(n - 64 for n in page_bytes),
    )


def key(name: int | str) -> PageKey:
    return PageKey(str(name).encode().ljust(32, b"."))


def publish(index: HostIndex, name: int | str, group: int = 0) -> HostPageId:
    page_id = index.allocate(group)
    assert page_id is not None
    assert index.publish(page_id, key(name))
    return page_id


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


class IndexMachine(RuleBasedStateMachine):
    """Two groups, two slabs; the model: a dict of keys, a list in LRU order, counts of readers."""

    names = st.integers(0, 15)
    groups = st.integers(0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.index = HostIndex(make_geometry(2, (4, 2)))
        self.held = HostLeases(self.index)
        self.filling: list[tuple[int, HostPageId]] = []
        self.quarantined: list[HostPageId] = []
        self.ready: dict[tuple[int, PageKey], HostPageId] = {}
        self.lru: list[tuple[int, PageKey]] = []
        self.leases: dict[LeaseId, list[tuple[int, PageKey]]] = {}
        self.mirror: set[tuple[int, PageKey]] = set()
        self.next_lease = 0
        self._before_lru: list[tuple[int, PageKey]] = []
        for name in range(8):
            self.store(0, name)

    def is_read(self, name: tuple[int, PageKey]) -> bool:
        return any(name in held for held in self.leases.values())

    def use(self, name: tuple[int, PageKey]) -> None:
        if name in self.lru:
            self.lru.remove(name)
        self.lru.append(name)

    @rule(group=groups)
    def allocate(self, group: int) -> None:
        in_use = {page for _, page in self.filling} | set(self.quarantined)
        before = dict(self.ready)
        page = self.index.allocate(group)
        gone = [name for name, held in before.items() if self.index.find(*name) != held]
        for name in gone:
            assert not self.is_read(name), "a leased page was dropped"
            del self.ready[name]
            self.lru.remove(name)
        if page is None:
            assert not gone
            assert not any(name[0] == group and not self.is_read(name) for name in before)
            return
        assert page not in in_use
        assert page not in self.ready.values()
        own = [name for name in gone if name[0] == group]
        assert not own or (own == gone and len(own) == 1), (
            "one victim of the own group, or a slab of the other"
        )
        unread = [name for name in before if name[0] == group and not self.is_read(name)]
        order = {name: place for place, name in enumerate(self._before_lru)}
        if gone and unread:
            oldest = min(unread, key=order.__getitem__)
            assert own == [oldest] or max(map(order.__getitem__, gone)) < order[oldest], (
                "the oldest page of the own group, or a slab whose pages are all older"
            )
        self.filling.append((group, page))

    @invariant()
    def remember_order(self) -> None:
        self._before_lru = list(self.lru)

    @rule(group=groups, name=names)
    def store(self, group: int, name: int) -> None:
        num_filling = len(self.filling)
        self.allocate(group)
        if len(self.filling) > num_filling:
            self._publish(len(self.filling) - 1, name)

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), name=names)
    def publish(self, data: st.DataObject, name: int) -> None:
        self._publish(data.draw(st.integers(0, len(self.filling) - 1)), name)

    def _publish(self, place: int, name: int) -> None:
        group, page = self.filling.pop(place)
        is_new = (group, key(name)) not in self.ready
        assert self.index.publish(page, key(name)) is is_new
        if is_new:
            self.ready[group, key(name)] = page
            self.use((group, key(name)))

    @precondition(lambda self: self.filling)
    @rule(is_kept_out=st.booleans())
    def give_back(self, is_kept_out: bool) -> None:
        _, page = self.filling.pop()
        if is_kept_out:
            self.index.quarantine(page)
            self.quarantined.append(page)
        else:
            self.index.free(page)

    @precondition(lambda self: self.quarantined)
    @rule()
    def end_quarantine(self) -> None:
        self.index.free(self.quarantined.pop(0))

    @rule(group=groups, chain=st.lists(names, unique=True, max_size=5))
    def touch(self, group: int, chain: list[int]) -> None:
        self.index.touch_chain(group, [key(name) for name in chain])
        for name in reversed(chain):
            if (group, key(name)) in self.ready and not self.is_read((group, key(name))):
                self.use((group, key(name)))

    @rule(
        chain=st.lists(names, unique=True, max_size=5),
        starts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    )
    def lease(self, chain: list[int], starts: tuple[int, int]) -> None:
        lease_id = LeaseId(self.next_lease)
        self.next_lease += 1
        end = 0
        while end < len(chain) and all(
            end < start or (group, key(chain[end])) in self.ready
            for group, start in enumerate(starts)
        ):
            end += 1
        runs = [
            [(group, key(name)) for name in chain[start:end]] for group, start in enumerate(starts)
        ]
        pages = self.held.lease(lease_id, [key(name) for name in chain], starts)
        assert pages == [[self.ready[name] for name in run] for run in runs]
        self.leases[lease_id] = [name for run in runs for name in run]

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        self.held.end(lease_id)
        for name in reversed(self.leases.pop(lease_id)):
            if not self.is_read(name):
                self.use(name)

    @rule(start=st.integers(0, 8), piece=st.integers(1, 8))
    def drop_some(self, start: int, piece: int) -> None:
        met = self.index.ready_pages(start, piece)
        assert met == sorted(page for page in self.ready.values() if page >= start)[:piece]
        for page in met:
            name = self.index.name(page)
            assert name is not None
            assert self.ready[name] == page
            is_gone = self.index.drop_unread(page)
            assert is_gone is not self.is_read(name)
            if is_gone:
                del self.ready[name]
                self.lru.remove(name)

    @invariant()
    def agrees(self) -> None:
        self.index.check()
        self.held.check()
        for group in range(2):
            keys = {name[1] for name in self.ready if name[0] == group}
            assert ready_keys(self.index, group) == keys
            ready, dropped = self.index.take_changes(group)
            self.mirror -= {(group, name) for name in dropped}
            self.mirror |= {(group, name) for name in ready}
        assert self.mirror == set(self.ready)


IndexMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestIndexMachine = IndexMachine.TestCase
