"""The HostMemory core in a world of slow copies, dying processes and unreliable storage.

The world keeps the content of every host page. Whoever has been told to write a page may do so at
any time until it has answered or has ended. The core is right if every READY page always holds what
its key names.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushHost,
    FlushStorage,
    FromScheduler,
    ProcessExited,
    RetireStorage,
    SchedulerAttached,
    SchedulerLost,
    Tick,
)
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    CopiesDrained,
    LeasePages,
    ObjectsDone,
    ObjectStatus,
    ProcessDrained,
    ReleaseLeases,
)
from tests.runtime.cache.host import draws, world_checks
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.host_world import (
    Copy,
    Engine,
    FlushWatch,
    Memory,
    RankGroup,
    ended_pids,
    make_engines,
    ready_names,
)
from tests.runtime.cache.host.late_words import bring_what_would_fit
from tests.runtime.cache.host.report_watch import ReportWatch


class HostWorld(RuleBasedStateMachine):
    """Two Schedulers with a rank group each, one storage process, KV groups of all kinds.

    Links also break between processes that live. A turn goes over two pages at most. What a rule
    says of a Scheduler is about the one whose turn it is; the second one has yet to attach.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.storage_pid, self.has_storage = 2000, True
        self.retired_orders: list[object] | None = None
        """What L3 had not answered when it was retired; None while it is in use."""

    @initialize(rule=draws.RULES, num_processes=st.integers(1, 2))
    def start(self, rule: PrefixRule, num_processes: int) -> None:
        self.host = draws.make_host(rule)
        self.groups = range(self.host.num_groups)
        self.reports = ReportWatch(self.host, rule)
        self.engine, self.other = make_engines(num_processes)
        self.objects = draws.first_objects(rule)
        self.flush_watch = FlushWatch(self.host.core._index)
        self.scheduler_attaches()
        self.host.attach_storage(self.storage_pid)
        for name in range(8, 12):
            for group in self.groups:
                self.start_backup(name, 1, group)
                self._finish_backup(0)

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return self.engine, self.other

    @property
    def ranks(self) -> RankGroup:
        return self.engine.ranks

    @property
    def is_attached(self) -> bool:
        return self.engine.is_attached

    @rule()
    def the_other_scheduler_acts(self) -> None:
        self.engine, self.other = self.other, self.engine
        self.host.turn_to(self.engine.name)
        if not self.is_attached and self.engine.is_drained:
            self.scheduler_attaches()

    @precondition(lambda self: self.is_attached)
    @rule(name=draws.NAMES, num_pages=st.integers(1, 3), group=draws.GROUPS)
    def start_backup(self, name: int, num_pages: int, group: int) -> None:
        group %= len(self.groups)
        granted = self.host.end.granted_of[group]
        for _ in range(min(num_pages, len(granted))):
            self.ranks.copies.append(Copy((group, make_key(name)), *granted.popleft()))
            name += 1

    @precondition(lambda self: self.is_attached and self.ranks.copies)
    @rule(data=st.data())
    def finish_backup(self, data: st.DataObject) -> None:
        self._finish_backup(data.draw(st.integers(0, len(self.ranks.copies) - 1)))

    def _finish_backup(self, place: int) -> None:
        copy = self.ranks.finish(place)
        self.memory.content[copy.page] = copy.name
        self.host.say(copy.commit)

    @precondition(lambda self: self.is_attached and self.ranks.past_copies)
    @rule(data=st.data())
    def commit_comes_late_or_twice(self, data: st.DataObject) -> None:
        before = ready_names(self.host.core._index)
        self.host.say(data.draw(st.sampled_from(self.ranks.past_copies)).commit)
        assert ready_names(self.host.core._index) <= before

    @precondition(lambda self: self.is_attached)
    @rule(
        chain=draws.CHAINS,
        request=st.sampled_from("abc"),
        num_l1=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        is_answered=st.booleans(),
    )
    def lookup(
        self, chain: list[int], request: str, num_l1: tuple[int, int], is_answered: bool
    ) -> None:
        if request in self.host.end.lookup_ids and not self.host.is_final(request):
            self.host.cancel(request)
        num_l1_pages = tuple(min(num_l1[group], len(chain)) for group in self.groups)
        self.reports.begin(request, chain, num_l1_pages)
        self.host.lookup(request, chain, num_l1_pages)

        for question in self.host.take_last_questions() if is_answered else ():
            statuses = self.memory.carry_out(question, self.objects, lambda: ObjectStatus.OK)
            self.host.hear_storage(
                ObjectsDone(batch_id=question.batch_id, statuses=bytes(statuses))
            )

    @precondition(lambda self: self.is_attached and self.host.end.lookup_ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.host.end.lookup_ids)))
        self.host.cancel(request)
        assert self.host.is_final(request)

    @precondition(lambda self: self.is_attached)
    @rule(chain=draws.CHAINS, starts=st.tuples(draws.STARTS, draws.STARTS))
    def lease(self, chain: list[int], starts: tuple[int, int]) -> None:
        starts_of = starts[: len(self.groups)]
        number = self.engine.new_lease()
        self.host.lease(number, chain, *starts_of)
        leased = self.host.end.leased[number]
        self.ranks.leases[number] = world_checks.leased_pages(self.host, leased, chain, starts_of)

    @precondition(lambda self: self.is_attached and self.ranks.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.ranks.leases)))
        del self.ranks.leases[lease]
        self.host.say(ReleaseLeases(lease_ids=int32_array([lease])))

    @precondition(lambda self: self.is_attached)
    @rule(place=st.integers(0, 1))
    def gpu_process_dies(self, place: int) -> None:
        self.gpu_link_breaks()
        self.ranks.replace(place)

    @precondition(lambda self: self.is_attached)
    @rule()
    def gpu_link_breaks(self) -> None:
        abandonment = self.ranks.abandonment()
        self.engine.lose_sight_of_copies(self.memory, self.ranks.pids)
        self.host.say(abandonment)

    @precondition(lambda self: self.is_attached and self.memory.holders & set(self.ranks.pids))
    @rule(data=st.data())
    def gpu_process_says_hello_anew(self, data: st.DataObject) -> None:
        pids = [pid for pid in self.ranks.pids if pid in self.memory.holders]
        pid = data.draw(st.sampled_from(pids))
        self.memory.end(pid)
        self.host.say(ProcessDrained(pid=pid))

    @precondition(lambda self: self.is_attached)
    @rule()
    def scheduler_is_lost(self) -> None:
        self.engine.lose_sight_of_connection(self.memory)
        self.engine.is_attached = False
        self.host.lose_scheduler()

    @precondition(lambda self: not self.is_attached)
    @rule()
    def scheduler_attaches(self) -> None:
        self.engine.is_attached = True
        self.host.attach_scheduler()
        assert self.engine.is_drained or not any(self.host.end.granted_of)

    @precondition(lambda self: self.is_attached)
    @rule(chain=draws.CHAINS, is_loss_seen=st.booleans())
    def scheduler_has_another_link_before_its_last_words_are_read(
        self, chain: list[int], is_loss_seen: bool
    ) -> None:
        """HostMemory's shell has the new link; what came over the former one waits for its turn."""
        former = self.host.scheduler
        assert former is not None
        self.engine.lose_sight_of_connection(self.memory)
        link = self.host.open_scheduler_link()
        keys = b"".join(make_key(name) for name in chain)
        starts = (0,) * len(self.groups)
        lease = LeasePages(lease_id=self.engine.new_lease(), keys=keys, starts=starts)
        self.host.tell(FromScheduler(former, lease))
        if is_loss_seen:
            self.host.tell(SchedulerLost(former))
        self.host.tell(SchedulerAttached(link, self.engine.name))
        assert not any(self.host.end.granted_of)

    @precondition(lambda self: self.host.earlier_connections)
    @rule(data=st.data())
    def earlier_connection_brings_what_would_fit(self, data: st.DataObject) -> None:
        connection = data.draw(st.sampled_from(self.host.earlier_connections))
        bring_what_would_fit(self.host, connection)

    @precondition(lambda self: self.is_attached and not self.engine.is_drained)
    @rule()
    def copies_drain(self) -> None:
        self.engine.is_drained = True
        self.memory.end(self.engine.name)
        self.host.say(CopiesDrained())

    @precondition(lambda self: self.memory.holders)
    @rule()
    def processes_out_of_reach_write(self) -> None:
        self.memory.spoil()

    @precondition(lambda self: ended_pids(self.memory, self.engines))
    @rule(data=st.data())
    def process_exits(self, data: st.DataObject) -> None:
        pid = data.draw(st.sampled_from(ended_pids(self.memory, self.engines)))
        assert pid in self.host.watched
        self.memory.end(pid)
        self.host.tell(ProcessExited(pid))

    @precondition(lambda self: self.host.orders)
    @rule(data=st.data())
    def storage_answers(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.host.orders) - 1))
        order = self.host.orders[place]
        del self.host.orders[place]
        is_cancelled = order.batch_id in self.host.cancelled
        luck = st.just(ObjectStatus.CANCELLED) if is_cancelled else draws.STATUSES
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
        self._attach_storage()

    def _attach_storage(self) -> None:
        self.has_storage = True
        self.retired_orders = None
        self.host.attach_storage(self.storage_pid)

    @precondition(lambda self: not self.has_storage and self.storage_pid in self.memory.holders)
    @rule()
    def storage_process_connects_again(self) -> None:
        """It has drained before, so what it was moving has come free, for HostMemory too."""
        self.memory.end(self.storage_pid)
        self._attach_storage()

    @precondition(lambda self: self.host.orders)
    @rule()
    def storage_is_silent(self) -> None:
        self.time_passes(draws.SETTINGS.patience_s + draws.SETTINGS.overdue_margin_s)

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
        self.flush_watch.start()
        self.host.dropped.clear()
        self.host.tell(FlushHost())
        if is_awaited:
            self.host.tick_while_due()
            assert self.host.dropped

    @invariant()
    def flushed_pages_are_gone_unless_they_were_read(self) -> None:
        self.flush_watch.look()
        if self.host.dropped:
            assert not self.flush_watch.left

    @invariant()
    def pages_hold_what_they_should(self) -> None:
        world_checks.check_pages(self.host, self.memory, self.engines)

    @invariant()
    def retired_storage_is_not_asked_and_not_waited_for(self) -> None:
        if self.retired_orders is not None:
            assert all(order in self.retired_orders for order in self.host.orders)
            assert self.host.stat("lookups") == 0
        world_checks.check_news_of_storage(self.host, is_in_use=self.retired_orders is None)

    @invariant()
    def reports_are_right(self) -> None:
        self.reports.check(self.objects)

    @invariant()
    def mirrors_are_right(self) -> None:
        world_checks.check_mirrors(self.host)

    def teardown(self) -> None:
        """Let everything end: nothing may be left over."""
        for _ in self.engines:
            if not self.is_attached:
                self.scheduler_attaches()
            if not self.engine.is_drained:
                self.copies_drain()
            self.gpu_process_dies(0)
            self.the_other_scheduler_acts()
        if not self.has_storage:
            self.storage_attaches()
        draws.end_all(self.host, self.memory)
        draws.assert_nothing_is_left(self.host)


HostWorld.TestCase.settings = settings(max_examples=80, stateful_step_count=50)
TestHostWorld = HostWorld.TestCase
