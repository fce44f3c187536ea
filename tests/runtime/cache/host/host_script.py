"""A scripted world around HostMemory's core: it carries out effects and answers for storage."""

from collections import deque
from typing import Any

from raydix.ids import SEVERAL_USERS, ConnectionId, LeaseId, PageKey, SchedulerName, UserId
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import (
    FromScheduler,
    FromStorage,
    HostEvent,
    HostFlushed,
    SchedulerAttached,
    SchedulerLost,
    SetGenerations,
    StorageAttached,
    StorageFlushed,
    StorageLost,
    StorageOrder,
    StorageRetired,
    Tick,
    ToScheduler,
    ToStorage,
    WatchProcess,
)
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    CancelLookup,
    CommitPages,
    LeasePages,
    Lookup,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    ReleaseLeases,
    ToHost,
    Urgency,
)
from raydix.runtime.messages.retention import RetainObjects
from tests.runtime.cache.host.host_values import (
    PAGE_SIZE,
    STORAGE,
    make_geometry,
    make_key,
    make_keys,
)
from tests.runtime.cache.host.scheduler_end import FIRST, SchedulerEnd
from tests.runtime.cache.host.scripted_objects import ObjectOrder, ScriptedObjects


class HostScript:
    """`now_s` moves by hand; `orders`, oldest first, is what storage has not answered.

    It numbers connections and carries messages as the actor does: those for a link that is gone go
    nowhere. Where nothing is said of KV groups, the first one is meant. Schedulers other than the
    first one are there once it was turned to them.
    """

    def __init__(
        self,
        num_pages: int = 64,
        storage: StorageSettings | None = None,
        former: FormerArena | None = None,
        *,
        num_slabs: int = 1,
        page_sizes: tuple[int, ...] = (1,),
        rule: PrefixRule | None = None,
        **changes: Any,
    ) -> None:
        """L2 has room for `num_pages` pages of size 1. `page_sizes`: one per KV group."""
        settings = HostSettings(
            page_size=PAGE_SIZE,
            rule=rule or PrefixRule(reaches=(None,) * len(page_sizes)),
            storage=storage or STORAGE,
            has_storage=storage is not None,
            **changes,
        )
        geometry = make_geometry(num_pages, num_slabs, page_sizes)
        self.core = HostMemoryCore(geometry, settings, former)
        self.now_s = 100.0
        self.num_connections = 0
        self.storage: ConnectionId | None = None
        """The link that is open; the core may not know of the latest changes."""
        self.num_undelivered = 0
        """Messages for a link that is gone."""
        self.table = dict.fromkeys(range(num_pages), 0)
        self.num_groups = len(page_sizes)
        self.end = SchedulerEnd(FIRST, self.num_groups)
        """The Scheduler that what is said and read here concerns."""
        self.ends = {FIRST: self.end}
        self.orders: deque[ObjectOrder] = deque()
        self.cancelled: list[int] = []
        self.object_hints: list[RetainObjects] = []
        """What storage was told of when objects are used again."""
        self.watched: list[int] = []
        self.flushed: list[ObjectStatus] = []
        self.dropped: list[int] = []
        """Answers to `FlushHost`."""
        self._objects = ScriptedObjects(len(page_sizes))
        self.num_retirements = 0

    def turn_to(self, name: SchedulerName) -> None:
        """From now on, another Scheduler speaks, and is looked at; it may have yet to attach."""
        self.end = self.ends.setdefault(name, SchedulerEnd(name, self.num_groups))

    @property
    def scheduler(self) -> ConnectionId | None:
        """The Scheduler's link, if it is open."""
        return self.end.link

    @property
    def granted(self) -> deque[tuple[int, int]]:
        """Pages and generations in the Scheduler's hands."""
        return self.end.granted_of[0]

    @property
    def mirror(self) -> set[bytes]:
        """Keys that the Scheduler knows of."""
        return self.end.mirror_of[0]

    @property
    def objects(self) -> dict[PageKey, ObjectStatus]:
        """What storage holds."""
        return self._objects.by_group[0]

    @property
    def objects_of(self) -> list[dict[PageKey, ObjectStatus]]:
        """What storage holds, per KV group."""
        return self._objects.by_group

    def tell(self, event: HostEvent) -> None:
        """Hand an event to the core, carry out what it says, and prove its accounts."""
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case SetGenerations(pages, generations):
                    self.table.update(zip(pages.tolist(), generations.tolist(), strict=True))
                case ToScheduler(connection, message):
                    end = self.end_of(connection)
                    if end is None:
                        self.num_undelivered += 1
                    else:
                        end.hear(message, self.table)
                case ToStorage(connection, order):
                    if self.is_open(connection):
                        self._order(order)
                case WatchProcess(pid):
                    self.watched.append(pid)
                case HostFlushed(num_pages):
                    self.dropped.append(num_pages)
                case StorageFlushed(status):
                    self.flushed.append(status)
                case StorageRetired():
                    self.num_retirements += 1
        self.core.check()

    def is_open(self, connection: ConnectionId) -> bool:
        """Whether the link is there that a message is meant for."""
        return connection == self.storage or self.end_of(connection) is not None

    def end_of(self, connection: ConnectionId) -> SchedulerEnd | None:
        """The Scheduler at the other end of a link; None if it is not open."""
        return next((end for end in self.ends.values() if end.link == connection), None)

    @property
    def earlier_connections(self) -> list[ConnectionId]:
        """Links that were there once."""
        connections = map(ConnectionId, range(1, self.num_connections + 1))
        return [connection for connection in connections if not self.is_open(connection)]

    def tick_while_due(self) -> int:
        """Go on with what is done in pieces. Returns how many there were."""
        num_ticks = 0
        while (due_s := self.core.next_deadline_s()) is not None and due_s <= self.now_s:
            self.tell(Tick())
            num_ticks += 1
        return num_ticks

    # Links

    def _connect(self) -> ConnectionId:
        self.num_connections += 1
        return ConnectionId(self.num_connections)

    def open_scheduler_link(self) -> ConnectionId:
        """A link to a Scheduler replaces the earlier one; the core has yet to be told."""
        return self.end.open(self._connect())

    def attach_scheduler(self) -> None:
        """A Scheduler connects."""
        self.tell(SchedulerAttached(self.open_scheduler_link(), self.end.name))

    def lose_scheduler(self) -> None:
        """The Scheduler's link closes."""
        assert self.scheduler is not None
        connection, self.end.link = self.scheduler, None
        self.tell(SchedulerLost(connection))

    def attach_storage(self, pid: int, patience_s: float | None = None) -> None:
        """A storage actor connects."""
        self.storage = self._connect()
        self.tell(StorageAttached(self.storage, pid, patience_s))

    def lose_storage(self) -> None:
        """The storage actor's link closes; what it was asked is not answered."""
        assert self.storage is not None
        connection, self.storage = self.storage, None
        self.orders.clear()
        self.tell(StorageLost(connection))

    def _order(self, order: StorageOrder) -> None:
        if isinstance(order, CancelBatch):
            self.cancelled.append(order.batch_id)
        elif isinstance(order, RetainObjects):
            self.object_hints.append(order)
        else:
            self.orders.append(order)

    def say(self, message: ToHost) -> None:
        """The Scheduler says something."""
        assert self.scheduler is not None
        self.tell(FromScheduler(self.scheduler, message))

    def hear_storage(self, done: ObjectsDone) -> None:
        """Storage says something."""
        assert self.storage is not None
        self.tell(FromStorage(self.storage, done))

    def answer(self, index: int = 0) -> ObjectOrder:
        """Storage carries out an order, out of turn if `index` is not 0."""
        order = self.orders[index]
        del self.orders[index]
        statuses = self._objects.carry_out(order, self.cancelled)
        self.hear_storage(ObjectsDone(batch_id=order.batch_id, statuses=bytes(statuses)))
        return order

    def take_last_questions(self) -> list[AskExists]:
        """The last questions, one for each group at most; the caller answers them."""
        questions: list[AskExists] = []
        while self.orders and len(questions) < self.num_groups:
            if not isinstance(self.orders[-1], AskExists):
                break
            question = self.orders.pop()
            assert isinstance(question, AskExists)
            questions.append(question)
        return questions

    def answer_all(self) -> None:
        """Storage carries out everything, in order."""
        while self.orders:
            self.answer()

    def store(
        self,
        names: "range | list[int] | list[str]",
        status: ObjectStatus = ObjectStatus.OK,
        group: int = 0,
    ) -> None:
        """Objects that exist in L3; reading them gives `status`."""
        self.objects_of[group].update({make_key(name): status for name in names})

    def commit(
        self, names: "range | list[int] | list[str]", group: int = 0
    ) -> list[tuple[int, int]]:
        """The Scheduler fills granted pages under these names, as many at once as it has."""
        used: list[tuple[int, int]] = []
        for name in names:
            pair = self.end.granted_of[group].popleft()
            used.append(pair)
            self.say(
                CommitPages(
                    keys=make_key(name),
                    host_page_ids=int32_array(pair[:1]),
                    generations=int32_array(pair[1:]),
                    group=group,
                )
            )
        return used

    def lookup(
        self,
        name: str,
        names: "range | list[int] | list[str]",
        num_l1_pages: int | tuple[int, ...] = 0,
        urgency: Urgency = Urgency.REQUEST,
        user: UserId = SEVERAL_USERS,
    ) -> None:
        """Ask, as lookup `name`. One number of L1 pages is that of every group."""
        if isinstance(num_l1_pages, int):
            num_l1_pages = (num_l1_pages,) * self.num_groups
        self.say(
            Lookup(
                lookup_id=self.end.new_lookup(name),
                keys=make_keys(names),
                num_l1_pages=num_l1_pages,
                urgency=urgency,
                user=user,
            )
        )

    def cancel(self, name: str) -> None:
        """Nobody waits for the last lookup `name` any more."""
        self.say(CancelLookup(lookup_id=self.end.lookup_ids[name]))

    def sources(self, request: str, group: int = 0) -> list[PageSource]:
        """The latest report."""
        return [PageSource(code) for code in self.end.progress[request][-1].sources[group]]

    def is_final(self, request: str) -> bool:
        return self.end.progress[request][-1].is_final

    def lease(self, lease: int, names: "range | list[int] | list[str]", *starts: int) -> list[int]:
        """Host pages of the first group that a lease got; `starts` are 0 unless given."""
        self.end.asked.add(lease)
        self.say(
            LeasePages(
                lease_id=LeaseId(lease),
                keys=make_keys(names),
                starts=starts or (0,) * self.num_groups,
            )
        )
        pages: list[int] = self.end.leased[lease].host_page_ids[0].tolist()
        return pages

    def release(self, *leases: int) -> None:
        self.say(ReleaseLeases(lease_ids=int32_array(leases)))

    def stat(self, name: str) -> int | str:
        return self.core.stats().get(name, 0)
