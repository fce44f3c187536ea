"""The brain of the HostMemory actor: a state machine without I/O that alone decides within L2."""

from collections import Counter
from typing import Any, assert_never

from raydix.errors import ConfigError
from raydix.ids import ConnectionId, HostPageId, LeaseId, SchedulerName
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host.chain_touches import ChainTouches
from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushHost,
    FlushStorage,
    FromScheduler,
    FromStorage,
    HostEffect,
    HostEvent,
    HostFlushed,
    ProcessExited,
    RetireStorage,
    SchedulerAttached,
    SchedulerEnded,
    SchedulerLost,
    SetGenerations,
    StorageAttached,
    StorageLost,
    Tick,
    ToScheduler,
    WatchProcess,
)
from raydix.runtime.cache.host.fetching import Fetching, Shared
from raydix.runtime.cache.host.flush import HostFlush
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.mirror import take_changes
from raydix.runtime.cache.host.page_accounts import check_holders, page_figures
from raydix.runtime.cache.host.peers import Peers
from raydix.runtime.cache.host.quarantine import Quarantine
from raydix.runtime.cache.host.retention import HostRetention
from raydix.runtime.cache.host.scheduler_side import SchedulerSide
from raydix.runtime.cache.host.schedulers import FormerArena, Schedulers
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage import HostStorage
from raydix.runtime.cache.host.unwritten import Turn
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AbandonPages,
    CancelLookup,
    CommitPages,
    CopiesDrained,
    LeasePages,
    Lookup,
    ProcessDrained,
    ReleaseLeases,
    ToHost,
)
from raydix.runtime.messages.retention import EndUse, ReleasePin

_STAGED_DIVISOR = 2
"""Prefetch may fill at most one page in so many."""


class HostMemoryCore:
    """Owns: the parts of HostMemory that share L2.

    It hears what happened, and `decide` returns what to do about it, in order. Any number of
    Schedulers may be attached, and one storage actor at a time. Lookups and leases have numbers
    that mean something over their own connection alone. An answered `LeasePages`, empty or not, is
    ended by one `ReleaseLeases` or `AbandonPages`.

    No turn takes long, however many pages there are: what concerns all of them is done in pieces,
    one with each `Tick`, which `next_deadline_s` asks for at once.
    """

    def __init__(
        self, geometry: ArenaGeometry, settings: HostSettings, former: FormerArena | None = None
    ) -> None:
        """Start with a new arena, or take back the one that a HostMemory before this one has left.

        Raises ConfigError if the settings are for another number of KV groups.
        """
        if len(settings.rule.reaches) != geometry.num_groups:
            raise ConfigError(
                f"the settings say how far {len(settings.rule.reaches)} KV groups reach; the arena "
                f"has {geometry.num_groups}"
            )
        fair_share = [
            geometry.max_pages(group) // geometry.num_groups for group in range(geometry.num_groups)
        ]
        max_staged = [pages // _STAGED_DIVISOR for pages in fair_share]
        self._effects: list[HostEffect] = []
        self.counters: Counter[str] = Counter()
        self._now_s = 0.0
        """The time of the last event."""
        generations = None if former is None else former.generations
        self._index = HostIndex(geometry, generations, settings.eviction)
        self._schedulers = Schedulers(
            self._index,
            fair_share,
            settings.piece_pages,
            self.counters,
            former_users=() if former is None else former.users,
        )
        self._quarantine = Quarantine(self._index)
        self._retention = HostRetention(self._index, settings, geometry)
        self._staged = StagedPages(
            self._index, max_staged, settings.storage.staged_grace_s, settings.piece_pages
        )
        self._flush = HostFlush(self._index, self._staged, settings.piece_pages, self.counters)
        self._touches = ChainTouches(self._index)
        shared = Shared(
            index=self._index,
            pins=self._retention.pins,
            staged=self._staged,
            touches=self._touches,
            effects=self._effects,
            counters=self.counters,
        )
        self._storage = HostStorage(settings, shared, self._retention)
        self._peers = Peers(settings, shared)
        self._begin_handing_out()

    def handle(self, event: HostEvent, now_s: float) -> list[HostEffect]:
        """Hear one event, and decide at once."""
        self.hear(event, now_s)
        return self.decide(now_s)

    def hear(self, event: HostEvent, now_s: float) -> None:
        """Take one event. Raises AccountingError if a Scheduler breaks the contract."""
        self._now_s = now_s
        self._index.advance(now_s)
        self._touches.prepare_for(event)
        if self._is_stale(event):
            self.counters["stale_events"] += 1
        else:
            self._take(event)
        self._advance(event)

    def decide(self, now_s: float) -> list[HostEffect]:
        """Return what is to be done about all that was heard, in order."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    @property
    def _fetchings(self) -> list[Fetching]:
        """What is fetched from each place."""
        return [self._storage.fetching, *self._peers.fetchings]

    @property
    def _num_reading(self) -> int:
        """The number of pages that are being fetched from anywhere."""
        return sum(each.reads.num_filling for each in self._fetchings)

    def _begin_handing_out(self) -> None:
        """Let pages be fetched, once nobody can touch them by an order that is not on record."""
        if self._schedulers.is_handing_out:
            self._storage.fetching.reads.allow_allocation()
            self._peers.allow_allocation()

    def _is_stale(self, event: HostEvent) -> bool:
        """Whether the event comes from a connection that has been lost or replaced."""
        match event:
            case FromScheduler(connection) | SchedulerLost(connection):
                return not self._schedulers.is_attached(connection)
            case FromStorage(connection) | StorageLost(connection):
                return connection != self._storage.orders.connection
            case _:
                return False

    def _take(self, event: HostEvent) -> None:
        match event:
            case FromScheduler(connection, message):
                self._take_message(self._schedulers.of(connection), message)
            case SchedulerAttached(connection, name):
                self._attach_scheduler(connection, name)
            case SchedulerLost(connection):
                self._lose_scheduler(self._schedulers.of(connection))
            case SchedulerEnded(name):
                self._end_scheduler(name)
            case FromStorage(_, message):
                self._storage.finish(message, self._now_s)
            case StorageAttached():
                self._attach_storage(event)
            case StorageLost():
                self._lose_storage()
            case ProcessExited(pid):
                self._quarantine.let_go(pid)
            case FlushHost():
                self._flush.start()
            case FlushStorage():
                self._storage.flush()
            case RetireStorage():
                self._storage.retire()
                self._storage.report_when_retired()
            case DetachStorage():
                self._storage.retire()
                self._lose_storage()
            case Tick():
                pass
            case _:
                self._peers.take(event, self._now_s)

    def _take_message(self, side: SchedulerSide, message: ToHost) -> None:
        match message:
            case Lookup():
                fetching = self._peers.use(message.source) or self._storage.fetching
                fetching.lookups.start(side.connection, message, self._now_s)
                self._storage.repairs.note_use(message.keys, self._now_s)
            case EndUse() | ReleasePin():
                self._retention.take(message, self._now_s)
            case CancelLookup():
                for fetching in (self._storage.fetching, *self._peers.busy):
                    fetching.lookups.cancel(side.connection, message.lookup_id)
            case LeasePages():
                self._lease(side, message)
            case ReleaseLeases():
                for lease_id in message.lease_ids:
                    side.leases.end(LeaseId(int(lease_id)))
            case CommitPages():
                self._commit(side, message)
            case AbandonPages():
                self._abandon(side, message)
            case ProcessDrained():
                self._quarantine.let_go(message.pid)
            case CopiesDrained():
                self._quarantine.let_go(side.name)
                self._schedulers.drain(side)
                self._begin_handing_out()
            case _:
                assert_never(message)

    def _lease(self, side: SchedulerSide, message: LeasePages) -> None:
        leased = side.lease(message)
        keys = split_keys(message.keys)
        for group, start in enumerate(message.starts):
            self._staged.release(group, keys[start:])
        self._effects.append(ToScheduler(side.connection, leased))

    def _commit(self, side: SchedulerSide, message: CommitPages) -> None:
        # To L3 the first page is written first.
        for page_id in side.commit(message):
            self._storage.writes.add(page_id, Turn.NEW)

    def _abandon(self, side: SchedulerSide, message: AbandonPages) -> None:
        pinned = []
        for lease_id in message.lease_ids:
            pinned.extend(side.leases.detach(LeaseId(int(lease_id))))
        granted = side.grants.take_some_back(message.host_page_ids, message.generations)
        self._hold_for(message.pids, granted, pinned)

    def _attach_scheduler(self, connection: ConnectionId, name: SchedulerName) -> None:
        if (former := self._schedulers.named(name)) is not None:
            self._lose_scheduler(former)
        self._schedulers.attach(connection, name)
        self._effects += [ToScheduler(connection, each) for each in self._peers.introduce()]
        self._effects += self._storage.objects.introduce(connection)

    def _lose_scheduler(self, side: SchedulerSide) -> None:
        """The connection is gone. Copies that were ordered over it may still be in flight, even if
        the Scheduler lives and connects again. Nothing of another Scheduler's changes.
        """
        self._schedulers.remove(side)
        for fetching in self._fetchings:
            fetching.lookups.forget(side.connection)
        # Whoever copies is not known here, as grants and leases were the Scheduler's. So they are
        # held for it by name, until its next connection says that all copies have ended.
        pinned = side.leases.detach_all()
        self._quarantine.hold((side.name,), side.grants.take_all_back(), pinned)

    def _end_scheduler(self, name: SchedulerName) -> None:
        """Nobody copies any more for a Scheduler that has ended; its pages in L2 stay."""
        if (side := self._schedulers.named(name)) is not None:
            self._lose_scheduler(side)
        self._quarantine.let_go(name)
        self._schedulers.end(name)
        self._begin_handing_out()

    def _hold_for(
        self, pids: tuple[int, ...], filling: list[HostPageId], pinned: list[HostPageId]
    ) -> None:
        self._quarantine.hold(pids, filling, pinned)
        self._effects.extend(map(WatchProcess, pids))

    def _attach_storage(self, event: StorageAttached) -> None:
        self._lose_storage()
        # A process that attaches has nothing under way: what was kept for it is free.
        self._quarantine.let_go(event.pid)
        self._storage.attach(event.connection, event.pid, event.patience_s)

    def _lose_storage(self) -> None:
        if (pid := self._storage.orders.pid) is not None:
            self._hold_for((pid,), *self._storage.lose())

    def _advance(self, event: HostEvent) -> None:
        # What is done in pieces goes on with ticks, which come at once, so that other events are
        # not held up by it.
        self._staged.expire(self._now_s)
        self._retention.expire(self._now_s)
        is_flushing = isinstance(event, Tick | FlushHost)
        if is_flushing and (num_dropped := self._flush.advance()) is not None:
            self._effects.append(HostFlushed(num_dropped))
        self._storage.repairs.ask_about(self._peers.take_pulled())
        self._storage.advance(self._now_s)
        self._peers.advance(self._now_s)
        grants = self._schedulers.fill_up()
        for _, grant in grants:
            # Before the grant is sent: a rank that is told of the page finds its generation in the
            # table.
            self._effects.append(SetGenerations(grant.host_page_ids, grant.generations))

        self._inform_schedulers(event)
        reports = self._storage.fetching.lookups.take_reports(self._now_s)
        reports += self._peers.take_reports(self._now_s)
        self._effects += [ToScheduler(connection, report) for connection, report in reports]
        for side, grant in grants:
            self._effects.append(ToScheduler(side.connection, grant))

    def _inform_schedulers(self, event: HostEvent) -> None:
        """Tell each Scheduler of L3 and of L2's keys.

        Reports come later: a Scheduler that hears of an arrived page finds it in its mirror.
        """
        updates = take_changes(self._index, self.counters)
        news = [*updates, *self._storage.objects.take_news(), *self._peers.take_news()]
        is_walking = isinstance(event, Tick | SchedulerAttached)
        self._effects.extend(self._schedulers.inform(self._storage.status, news, is_walking))
        self._peers.readers.inform(updates, is_walking)

    @property
    def is_drained(self) -> bool:
        """Whether no page waits to be written to L3, so that a clean stop may go on."""
        return self._storage.num_pending == 0

    def next_deadline_s(self) -> float | None:
        """The time at which a `Tick` is due; None if time alone changes nothing."""
        has_work = [self._flush.has_work, self._schedulers.has_work, self._staged.has_work]
        has_work += [self._touches.has_work, self._storage.has_work, self._peers.has_work]
        if any(has_work):
            return self._now_s
        staged_s, peers_s = self._staged.next_expiry_s, self._peers.next_deadline_s
        pins_s = self._retention.pins.next_expiry_s
        times = (self._storage.next_deadline_s, staged_s, peers_s, pins_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def stats(self) -> dict[str, Any]:
        """Figures of L2, of what is pending and of the breaker, and all counters."""
        stats: dict[str, Any] = {
            **page_figures(self._index, self._index.page_bytes),
            **self._schedulers.figures(),
            "lookups": sum(each.lookups.num_lookups for each in self._fetchings),
            "lookup_times": self._storage.fetching.lookups.times.figure(),
            "pages_reading": self._num_reading,
            "pages_staged": self._staged.num_pins,
            **self._retention.figures(self._now_s),
            **self._storage.figures(),
            **self._peers.figures(),
        }
        return stats | self.counters

    def check(self) -> None:
        """Raise AccountingError, with figures, unless each page in use has one holder; O(pages)."""
        self._index.check()
        self._schedulers.check()
        self._staged.check()
        self._retention.check(self._now_s)
        self._storage.writes.check()
        self._peers.check()
        check_holders(
            self._index,
            num_granted=self._schedulers.num_granted,
            num_reading=self._num_reading,
            num_quarantined=self._quarantine.num_pages,
            num_pins=self._quarantine.num_pins
            + self._schedulers.num_pins
            + self._staged.num_pins
            + self._retention.pins.num_pins
            + self._peers.readers.num_pins
            + self._storage.writes.num_pinned,
        )
