"""The index of L2 against a naive model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydix.ids import HostPageId, LeaseId, PageKey
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from tests.runtime.cache.host.host_world import ready_keys
from tests.runtime.cache.host.index_pages import key, make_geometry


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
