"""The HostMemory core in a world of slow copies, dying processes and unreliable storage.

The world keeps the content of every host page. Whoever has been told to write a page may do so at
any time until it has answered or has ended. The core is right if every READY page always holds what
its key names.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydix.ids import LeaseId, PageKey
from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushHost,
    FlushStorage,
    FromScheduler,
    FromStorage,
    ProcessExited,
    RetireStorage,
    SchedulerAttached,
    SchedulerLost,
    StorageLost,
    Tick,
)
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AbandonPages,
    CommitPages,
    CopiesDrained,
    DeleteObjects,
    FindObjects,
    LeasePages,
    ObjectsDone,
    ObjectStatus,
    ProcessDrained,
    ReleaseLeases,
    split_keys,
)
from tests.runtime.cache.host.host_script import STORAGE, HostScript, make_key
from tests.runtime.cache.host.host_world import Memory

SETTINGS = replace(
    STORAGE, batch_pages=3, max_queued_writes=6, breaker_failures=3, max_write_attempts=2
)
NAMES = st.integers(0, 11)
CHAINS = st.builds(
    lambda first, length: list(range(first, first + length)), st.integers(0, 3), st.integers(0, 8)
)
STATUSES = st.sampled_from(
    [ObjectStatus.OK] * 4 + [ObjectStatus.IO_ERROR, ObjectStatus.FULL, ObjectStatus.TIMED_OUT]
)


class HostWorld(RuleBasedStateMachine):
    """One GPU process at a time (its pid rises when it dies), one storage process, one Scheduler.

    Links also break between processes that live. A turn goes over two pages at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.host = HostScript(24, SETTINGS, piece_pages=2)
        self.memory = Memory()
        self.copies: list[tuple[int, int, PageKey]] = []
        """Backups that the living GPU process carries out: page, generation, key."""
        self.past_copies: list[tuple[int, int, PageKey]] = []
        """Backups that have ended, well or not; a late word about one must change nothing."""
        self.leases: dict[int, list[tuple[int, PageKey]]] = {}
        self.gpu_pid, self.storage_pid, self.next_lease = 1000, 2000, 0
        self.is_attached, self.is_drained, self.has_storage = True, True, True
        self.retired_orders: list[object] | None = None
        """What L3 had not answered when it was retired; None while it is in use."""
        self.objects = {make_key(name) for name in range(8)}
        self.flushing: set[tuple[int, int]] = set()
        """Pages, with generations, that were READY when a flush was asked for and that nobody has
        read since.
        """
        self.host.attach_scheduler()
        self.host.attach_storage(self.storage_pid)
        for name in range(8, 12):
            self.start_backup(name, 1)
            self._finish_backup(0)

    # The Scheduler and its GPU process

    @precondition(lambda self: self.is_attached and self.host.granted)
    @rule(name=NAMES, num_pages=st.integers(1, 3))
    def start_backup(self, name: int, num_pages: int) -> None:
        for _ in range(min(num_pages, len(self.host.granted))):
            self.copies.append((*self.host.granted.popleft(), make_key(name)))
            name += 1

    @precondition(lambda self: self.is_attached and self.copies)
    @rule(data=st.data())
    def finish_backup(self, data: st.DataObject) -> None:
        self._finish_backup(data.draw(st.integers(0, len(self.copies) - 1)))

    def _finish_backup(self, place: int) -> None:
        page, generation, key = self.copies.pop(place)
        self.memory.content[page] = key
        self.past_copies.append((page, generation, key))
        self._commit(page, generation, key)

    def _commit(self, page: int, generation: int, key: PageKey) -> None:
        pages, generations = int32_array([page]), int32_array([generation])
        self.host.say(CommitPages(keys=key, host_page_ids=pages, generations=generations))

    @precondition(lambda self: self.is_attached and self.past_copies)
    @rule(data=st.data())
    def commit_comes_late_or_twice(self, data: st.DataObject) -> None:
        before = set(self.host.core._index.ready_keys(0))
        self._commit(*data.draw(st.sampled_from(self.past_copies)))
        assert set(self.host.core._index.ready_keys(0)) <= before

    @precondition(lambda self: self.is_attached)
    @rule(
        chain=CHAINS,
        request=st.sampled_from("abc"),
        num_l1=st.integers(0, 2),
        is_answered=st.booleans(),
    )
    def lookup(self, chain: list[int], request: str, num_l1: int, is_answered: bool) -> None:
        if request in self.host.lookup_ids and not self.host.is_final(request):
            self.host.cancel(request)
        self.host.lookup(request, chain, min(num_l1, len(chain)))
        if (
            is_answered
            and self.host.orders
            and isinstance(search := self.host.orders[-1], FindObjects)
        ):
            self.host.orders.pop()
            statuses = bytes(key not in self.objects for key in split_keys(search.keys))
            self.host.hear_storage(ObjectsDone(batch_id=search.batch_id, statuses=statuses))

    @precondition(lambda self: self.is_attached and self.host.lookup_ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.host.lookup_ids)))
        self.host.cancel(request)
        assert self.host.is_final(request)

    @precondition(lambda self: self.is_attached)
    @rule(chain=CHAINS)
    def lease(self, chain: list[int]) -> None:
        pages = self.host.lease(self.next_lease, chain)
        generations = self.host.leased[self.next_lease].generations.tolist()
        assert generations == [self.host.table[page] for page in pages]
        self.leases[self.next_lease] = [
            (page, make_key(name)) for page, name in zip(pages, chain, strict=False)
        ]
        self.next_lease += 1

    @precondition(lambda self: self.is_attached and self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        del self.leases[lease]
        self.host.say(ReleaseLeases(lease_ids=int32_array([lease])))

    @precondition(lambda self: self.is_attached)
    @rule()
    def gpu_process_dies(self) -> None:
        self.gpu_link_breaks()
        self.gpu_pid += 1

    @precondition(lambda self: self.is_attached)
    @rule()
    def gpu_link_breaks(self) -> None:
        abandoned = AbandonPages(
            host_page_ids=int32_array(page for page, _, _ in self.copies),
            generations=int32_array(generation for _, generation, _ in self.copies),
            lease_ids=int32_array(self.leases),
            pid=self.gpu_pid,
        )
        self._lose_sight_of_copies(self.gpu_pid)
        self.host.say(abandoned)

    @precondition(lambda self: self.is_attached and self.gpu_pid in self.memory.holders)
    @rule()
    def gpu_process_says_hello_anew(self) -> None:
        self.memory.end(self.gpu_pid)
        self.host.say(ProcessDrained(pid=self.gpu_pid))

    def _lose_sight_of_copies(self, holder: int | None) -> None:
        reads = [entry for held in self.leases.values() for entry in held]
        self.memory.lose_sight(holder, (page for page, _, _ in self.copies), reads)
        self.past_copies.extend(self.copies)
        self.copies.clear()
        self.leases.clear()

    @precondition(lambda self: self.is_attached)
    @rule()
    def scheduler_is_lost(self) -> None:
        self._lose_sight_of_copies(None)
        self.is_attached = self.is_drained = False
        self.host.lose_scheduler()

    @precondition(lambda self: not self.is_attached)
    @rule()
    def scheduler_attaches(self) -> None:
        self.is_attached = True
        self.host.attach_scheduler()
        assert not self.host.granted

    @precondition(lambda self: self.is_attached)
    @rule(chain=CHAINS, is_loss_seen=st.booleans())
    def scheduler_has_another_link_before_its_last_words_are_read(
        self, chain: list[int], is_loss_seen: bool
    ) -> None:
        """HostMemory's shell has the new link; what came over the former one still waits for its
        turn.
        """
        former = self.host.scheduler
        assert former is not None
        self._lose_sight_of_copies(None)
        self.is_drained = False
        link = self.host.open_scheduler_link()
        keys = b"".join(make_key(name) for name in chain)
        self.host.tell(
            FromScheduler(former, LeasePages(lease_id=LeaseId(self.next_lease), keys=keys))
        )
        self.next_lease += 1
        if is_loss_seen:
            self.host.tell(SchedulerLost(former))
        self.host.tell(SchedulerAttached(link))
        assert not self.host.granted

    @precondition(lambda self: self.host.earlier_connections)
    @rule(data=st.data())
    def earlier_connection_brings_what_would_fit(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(self.host.earlier_connections))
        self.host.tell(FromScheduler(connection, CopiesDrained()))
        if self.host.granted:
            page, generation = self.host.granted[0]
            pages, generations = int32_array([page]), int32_array([generation])
            commit = CommitPages(keys=make_key(0), host_page_ids=pages, generations=generations)
            self.host.tell(FromScheduler(connection, commit))
        for order in tuple(self.host.orders):
            num_objects = 1 if isinstance(order, DeleteObjects) else len(split_keys(order.keys))
            self.host.tell(
                FromStorage(
                    connection, ObjectsDone(batch_id=order.batch_id, statuses=bytes(num_objects))
                )
            )
        self.host.tell(SchedulerLost(connection))
        self.host.tell(StorageLost(connection))

    @precondition(lambda self: self.is_attached and not self.is_drained)
    @rule()
    def copies_drain(self) -> None:
        self.is_drained = True
        self.memory.end(None)
        self.host.say(CopiesDrained())

    # Processes that died

    @precondition(lambda self: self.memory.holders)
    @rule()
    def processes_out_of_reach_write(self) -> None:
        self.memory.spoil()

    @precondition(lambda self: self.memory.holders - {None, self.gpu_pid})
    @rule(data=st.data())
    def process_exits(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from([pid for pid in self.memory.pids if pid != self.gpu_pid]))
        assert pid in self.host.watched
        self.memory.end(pid)
        self.host.tell(ProcessExited(pid))

    # Storage

    @precondition(lambda self: self.host.orders)
    @rule(data=st.data())
    def storage_answers(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.host.orders) - 1))
        order = self.host.orders[place]
        del self.host.orders[place]
        is_cancelled = order.batch_id in self.host.cancelled
        luck = st.just(ObjectStatus.CANCELLED) if is_cancelled else STATUSES
        statuses = self.memory.carry_out(order, self.objects, lambda: data.draw(luck))
        self.host.hear_storage(ObjectsDone(batch_id=order.batch_id, statuses=bytes(statuses)))

    @precondition(lambda self: self.has_storage)
    @rule()
    def storage_is_lost(self) -> None:
        self._lose_sight_of_storage()
        self.host.lose_storage()

    @rule()
    def storage_is_retired(self) -> None:
        before = self.host.num_retirements
        self.retired_orders = list(self.host.orders)
        self.host.tell(RetireStorage())
        assert (self.host.num_retirements > before) == (not self.host.orders)

    @rule()
    def storage_is_detached(self) -> None:
        self.retired_orders = []
        if self.has_storage:
            self._lose_sight_of_storage()
            self.host.storage = None
        self.host.tell(DetachStorage())

    def _lose_sight_of_storage(self) -> None:
        self.memory.lose_sight_of_orders(self.storage_pid, self.host.orders)
        self.host.orders.clear()
        self.has_storage = False

    @precondition(lambda self: not self.has_storage)
    @rule()
    def storage_attaches(self) -> None:
        self.storage_pid += 1
        self.has_storage = True
        self.retired_orders = None
        self.host.attach_storage(self.storage_pid)

    @precondition(lambda self: not self.has_storage and self.storage_pid in self.memory.holders)
    @rule()
    def storage_process_connects_again(self) -> None:
        """It has drained before, so what it was moving has come free, for HostMemory too."""
        self.memory.end(self.storage_pid)
        self.has_storage = True
        self.retired_orders = None
        self.host.attach_storage(self.storage_pid)

    # The rest

    @precondition(lambda self: self.host.orders)
    @rule()
    def storage_is_silent(self) -> None:
        self.time_passes(SETTINGS.deadline_s + SETTINGS.overdue_margin_s)

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.5, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.host.now_s += seconds
        self.host.tell(Tick())

    @rule()
    def nothing_else_happens(self) -> None:
        assert self.host.tick_while_due() <= 100
        due_s = self.host.core.next_deadline_s()
        assert due_s is None or due_s > self.host.now_s

    @rule()
    def flush_storage(self) -> None:
        self.host.tell(FlushStorage())

    @rule(is_awaited=st.booleans())
    def flush(self, is_awaited: bool) -> None:
        index = self.host.core._index
        self.flushing |= {(page, index.generation(page)) for page in index.ready_pages(0, 24)}
        self.host.dropped.clear()
        self.host.tell(FlushHost())
        if is_awaited:
            self.host.tick_while_due()
            assert self.host.dropped

    @invariant()
    def flushed_pages_are_gone_unless_they_were_read(self) -> None:
        index = self.host.core._index
        ready = {
            (page, index.generation(page)): index._pages.num_readers(page)
            for page in index.ready_pages(0, 24)
        }
        self.flushing = {name for name in self.flushing if ready.get(name) == 0}
        if self.host.dropped:
            assert not self.flushing

    @invariant()
    def every_ready_page_holds_what_its_key_names(self) -> None:
        index = self.host.core._index
        for key in index.ready_keys(0):
            page = index.find(0, key)
            assert page is not None
            assert self.memory.content[page] == key

    @invariant()
    def pages_that_others_may_write_are_out_of_use(self) -> None:
        self.memory.check_writable(self.host.core._index, dict(self.host.granted), self.host.orders)

    @invariant()
    def what_is_being_read_stays(self) -> None:
        self.memory.check_reads(entry for held in self.leases.values() for entry in held)

    @invariant()
    def retired_storage_is_not_asked_and_not_waited_for(self) -> None:
        if self.retired_orders is not None:
            assert all(order in self.retired_orders for order in self.host.orders)
            assert self.host.stat("lookups") == 0
        if self.is_attached:
            assert self.host.knows_storage == (self.retired_orders is None)

    @invariant()
    def mirror_is_right(self) -> None:
        if self.is_attached:
            ready = {key[:16] for key in self.host.core._index.ready_keys(0)}
            assert self.host.mirror <= ready
            assert self.host.mirror == ready or self.host.core._mirror.has_work

    def teardown(self) -> None:
        """Let everything end: nothing may be left over."""
        if not self.is_attached:
            self.scheduler_attaches()
        if not self.is_drained:
            self.copies_drain()
        if not self.has_storage:
            self.storage_attaches()
        self.gpu_process_dies()
        for pid in self.memory.pids:
            self.memory.end(pid)
            self.host.tell(ProcessExited(pid))
        for _ in range(3):
            while self.host.orders or self.host.tick_while_due():
                self.host.answer_all()
            self.host.now_s += 100.0
            self.host.tell(Tick())
        self.host.tick_while_due()
        stats = self.host.core.stats()
        for name in (
            "leases",
            "lookups",
            "pages_reading",
            "pages_staged",
            "pages_quarantined",
            "l3_writes_pending",
        ):
            assert stats[name] == 0, name
        assert stats["pages_filling"] == stats["pages_granted"] == len(self.host.granted)
        assert self.host.core._index.num_readers == 0


HostWorld.TestCase.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, derandomize=True
)
TestHostWorld = HostWorld.TestCase
