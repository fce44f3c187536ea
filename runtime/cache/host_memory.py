"""The brain of the HostMemory actor: a state machine without I/O that alone decides within L2."""

from collections import Counter
from typing import assert_never

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId
from raydix.runtime.cache.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host_events import (
    DetachStorage,
    FlushHost,
    FlushStorage,
    FromScheduler,
    FromStorage,
    HostEffect,
    HostEvent,
    HostSettings,
    ProcessExited,
    RetireStorage,
    SchedulerAttached,
    SchedulerLost,
    SetGenerations,
    StorageAttached,
    StorageLost,
    Tick,
    ToScheduler,
    WatchProcess,
)
from raydix.runtime.cache.host_holds import Quarantine, StagedPages
from raydix.runtime.cache.host_index import HostIndex, PageState
from raydix.runtime.cache.host_storage import HostStorage
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import (
    MIRROR_KEY_BYTES,
    AbandonPages,
    CancelLookup,
    CommitPages,
    CopiesDrained,
    FromHost,
    LeasePages,
    Lookup,
    MirrorUpdate,
    PagesGranted,
    PagesLeased,
    ReleaseLeases,
    StorageStatus,
    ToHost,
    split_keys,
)

MAX_GRANTED_PAGES = 256
GRANTED_FRACTION = 8
"""The Scheduler is kept stocked with one page in so many."""
STAGED_FRACTION = 2
"""Prefetch may fill one page in so many."""
MAX_MIRROR_KEYS = 65_536
"""Of one message, when a Scheduler gets the whole set."""


class HostMemoryCore:
    """Owns: L2's index, grants to the Scheduler, quarantine, lookups, and the orders to the storage actor.

    `handle` is told what happened and returns what to do, in order. One Scheduler and one storage actor are attached
    at a time. An answered `LeasePages`, empty or not, is ended by one `ReleaseLeases` or `AbandonPages`.
    """

    def __init__(self, geometry: ArenaGeometry, settings: HostSettings, generations: Int32Array | None = None) -> None:
        """`generations`: the table of an arena taken back from a survivor; no page is handed out before
        `CopiesDrained`. None: the arena is new.
        """
        self._settings = settings
        self._index = HostIndex(geometry, generations)
        self._effects: list[HostEffect] = []
        self.counters: Counter[str] = Counter()
        fair_share = [geometry.max_pages(group) // geometry.num_groups for group in range(geometry.num_groups)]
        self._max_granted = [max(1, min(pages // GRANTED_FRACTION, MAX_GRANTED_PAGES)) for pages in fair_share]
        self._page_bytes = geometry.page_bytes
        self._granted: list[set[HostPageId]] = [set() for _ in fair_share]
        self._quarantine = Quarantine(self._index)
        self._epoch: int | None = None
        self._is_granting = False
        self._is_first_attach = generations is None
        self._known_in_use: bool | None = None
        """What the attached Scheduler was told of L3."""
        storage = settings.storage
        max_staged = [pages // STAGED_FRACTION for pages in fair_share]
        self._staged = StagedPages(self._index, max_staged, storage.staged_grace_s)
        self._storage = HostStorage(settings, self._index, self._staged, self._effects, self.counters)
        self._lookups = self._storage.lookups
        self._lookups.is_allocating = generations is None

    def handle(self, event: HostEvent, now_s: float) -> list[HostEffect]:
        """Take one event; `now_s` is monotonic. Raises AccountingError if the Scheduler breaks the contract."""
        match event:
            case FromScheduler(message):
                self._take_message(message, now_s)
            case SchedulerAttached(epoch):
                self._attach_scheduler(epoch)
            case SchedulerLost():
                self._lose_scheduler()
            case FromStorage(message):
                self._storage.finish(message, now_s)
            case StorageAttached(pid):
                self._attach_storage(pid)
            case StorageLost():
                self._lose_storage()
            case ProcessExited(pid):
                self._quarantine.let_go(pid)
            case FlushHost():
                self._staged.release_all()
                for group in range(len(self._granted)):
                    self.counters["pages_flushed"] += self._index.drop_unpinned(group)
            case FlushStorage():
                self._storage.flush()
            case RetireStorage():
                self._storage.retire()
                self._storage.await_retirement()
            case DetachStorage():
                self._storage.retire()
                self._lose_storage()
            case Tick():
                pass
            case _:
                assert_never(event)
        self._advance(now_s)
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # The Scheduler ---------------------------------------------------------------------------------------------

    def _take_message(self, message: ToHost, now_s: float) -> None:
        match message:
            case Lookup():
                self._lookups.start(message, now_s)
                self._storage.repairs.note_use(message.group, split_keys(message.keys), now_s)
            case CancelLookup():
                self._lookups.cancel(message.request_id)
            case LeasePages():
                self._lease(message)
            case ReleaseLeases():
                for lease_id in message.lease_ids.tolist():
                    self._index.end_lease(LeaseId(lease_id))
            case CommitPages():
                self._commit(message)
            case ReturnPages():
                for page_id in self._take_granted(message.host_page_ids, message.generations):
                    self._index.free(page_id)
            case AbandonPages():
                self._abandon(message)
            case CopiesDrained():
                self._drain(message)
            case _:
                assert_never(message)

    def _lease(self, message: LeasePages) -> None:
        keys = split_keys(message.keys)
        page_ids = self._index.lease(message.lease_id, message.group, keys)
        self._staged.release(message.group, keys)
        self._send(
            PagesLeased(
                lease_id=message.lease_id,
                host_page_ids=int32_array(page_ids),
                generations=int32_array(self._index.generation(page_id) for page_id in page_ids),
            )
        )

    def _commit(self, message: CommitPages) -> None:
        entries = list(
            zip(split_keys(message.keys), message.host_page_ids.tolist(), message.generations.tolist(), strict=True)
        )
        # The last page is published first, so that a chain loses its tail first; it is stored head first.
        published = []
        for key, page_id, generation in reversed(entries):
            if not self._take_one(page_id, generation):
                continue
            if self._index.publish(page_id, key):
                published.append(key)
            else:
                self.counters["duplicate_commits"] += 1
        self.counters["pages_committed"] += len(published)
        for key in reversed(published):
            self._storage.writes.add(message.group, key)

    def _take_one(self, page_id: int, generation: int) -> bool:
        """Take a granted page back from the Scheduler, if it is still the one that the Scheduler means."""
        if self._index.is_filling(page_id, generation):
            for granted in self._granted:
                if page_id in granted:
                    granted.remove(HostPageId(page_id))
                    return True
        self.counters["stale_pages"] += 1
        return False

    def _take_granted(self, page_ids: Int32Array, generations: Int32Array) -> list[HostPageId]:
        pairs = zip(page_ids.tolist(), generations.tolist(), strict=True)
        return [HostPageId(page_id) for page_id, generation in pairs if self._take_one(page_id, generation)]

    def _abandon(self, message: AbandonPages) -> None:
        pinned = []
        for lease_id in message.lease_ids.tolist():
            pinned.extend(self._index.detach_lease(LeaseId(lease_id)))
        self._hold_until_exit(message.pid, self._take_granted(message.host_page_ids, message.generations), pinned)

    def _attach_scheduler(self, epoch: int) -> None:
        if self._epoch is not None:
            self._lose_scheduler()
        self._epoch = epoch
        self._known_in_use = None
        self._is_granting = self._is_first_attach
        self._is_first_attach = False
        for group in range(len(self._granted)):
            self._index.take_changes(group)
            keys = [key[:MIRROR_KEY_BYTES] for key in self._index.ready_keys(group)]
            for start in range(0, len(keys), MAX_MIRROR_KEYS):
                self._send(MirrorUpdate(ready=b"".join(keys[start : start + MAX_MIRROR_KEYS]), group=group))

    def _lose_scheduler(self) -> None:
        self._epoch = None
        self._is_granting = False
        self._lookups.cancel_all()
        granted = [page_id for pages in self._granted for page_id in pages]
        for pages in self._granted:
            pages.clear()
        pinned = [page_id for lease_id in self._index.lease_ids() for page_id in self._index.detach_lease(lease_id)]
        self._quarantine.hold(None, granted, pinned)

    def _drain(self, message: CopiesDrained) -> None:
        if message.host_incarnation != self._settings.incarnation:
            self.counters["stale_drains"] += 1
            return
        self._quarantine.let_go(None)
        self._is_granting = True
        self._lookups.is_allocating = True

    def _hold_until_exit(self, pid: int, filling: list[HostPageId], pinned: list[HostPageId]) -> None:
        self._quarantine.hold(pid, filling, pinned)
        self._effects.append(WatchProcess(pid))

    # Storage ---------------------------------------------------------------------------------------------------

    def _attach_storage(self, pid: int) -> None:
        self._lose_storage()
        self._storage.attach(pid)

    def _lose_storage(self) -> None:
        pid = self._storage.orders.pid
        if pid is not None:
            self._hold_until_exit(pid, *self._storage.lose())

    # After each event ------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        self._staged.expire(now_s)
        self._storage.advance(now_s)
        grants = self._make_grants()
        is_in_use = self._storage.orders.is_in_use
        if self._epoch is not None and self._known_in_use != is_in_use:
            self._known_in_use = is_in_use
            self._send(StorageStatus(is_in_use=is_in_use))
        # Keys first: a Scheduler that hears of an arrived page finds it in its mirror.
        for group in range(len(self._granted)):
            ready, dropped = self._index.take_changes(group)
            self.counters["pages_dropped"] += len(dropped)
            if ready or dropped:
                update = MirrorUpdate(
                    ready=b"".join(key[:MIRROR_KEY_BYTES] for key in ready),
                    dropped=b"".join(key[:MIRROR_KEY_BYTES] for key in dropped),
                    group=group,
                )
                self._send(update)
        for report in self._lookups.take_reports(now_s):
            self._send(report)
        for grant in grants:
            self._send(grant)

    def _make_grants(self) -> list[PagesGranted]:
        if not self._is_granting:
            return []
        grants = []
        for group, granted in enumerate(self._granted):
            new: list[HostPageId] = []
            while len(granted) + len(new) < self._max_granted[group]:
                page_id = self._index.allocate(group)
                if page_id is None:
                    break
                new.append(page_id)
            if new:
                granted.update(new)
                page_ids = int32_array(new)
                generations = int32_array(self._index.generation(page_id) for page_id in new)
                self._effects.append(SetGenerations(page_ids, generations))
                grants.append(PagesGranted(host_page_ids=page_ids, generations=generations, group=group))
        return grants

    def _send(self, message: FromHost) -> None:
        if self._epoch is not None:
            self._effects.append(ToScheduler(message))

    # Queries ---------------------------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Every page that was to be written to L3 has been written or dropped: a clean stop may go on."""
        return self._storage.num_pending == 0

    def next_deadline_s(self) -> float | None:
        """When a `Tick` is due; None if time alone changes nothing."""
        times = [self._storage.next_deadline_s, self._staged.next_expiry_s]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def stats(self) -> dict[str, int | str]:
        """Pages by state, bytes that READY pages take, what is pending, the breaker, and all counters; O(pages)."""
        orders = self._storage.orders
        totals: Counter[str] = Counter({state.name.lower(): 0 for state in PageState})
        ready_bytes = 0
        for group, page_bytes in enumerate(self._page_bytes):
            for state, count in self._index.count_by_state(group).items():
                totals[state.name.lower()] += count
                ready_bytes += count * page_bytes if state is PageState.READY else 0
        stats: dict[str, int | str] = {f"pages_{name}": count for name, count in totals.items()}
        stats |= {
            "slabs_unused": self._index.num_unused_slabs,
            "ready_bytes": ready_bytes,
            "pages_granted": sum(map(len, self._granted)),
            "leases": self._index.num_leases,
            "lookups": self._lookups.num_lookups,
            "pages_reading": self._lookups.num_filling,
            "pages_staged": self._staged.num_pins,
            "l3_breaker": orders.breaker_state.value if orders.is_in_use else "none",
            "l3_breaker_trips": orders.num_trips,
            "l3_writes_pending": self._storage.num_pending,
        }
        return stats | self.counters

    def check(self) -> None:
        """Prove that every page in use has exactly one holder. Raises AccountingError with the figures."""
        self._index.check()
        self._storage.writes.check()
        counts: Counter[PageState] = Counter()
        for group in range(len(self._granted)):
            counts.update(self._index.count_by_state(group))
        num_granted = sum(map(len, self._granted))
        num_filling = num_granted + self._lookups.num_filling
        if counts[PageState.FILLING] != num_filling:
            raise AccountingError(
                f"{counts[PageState.FILLING]} pages are FILLING; {num_granted} are granted and "
                f"{self._lookups.num_filling} are being read"
            )
        num_held = self._quarantine.num_pages
        if counts[PageState.QUARANTINED] != num_held:
            raise AccountingError(f"{counts[PageState.QUARANTINED]} pages are QUARANTINED; {num_held} are on record")
        num_pinned = self._quarantine.num_pins + self._index.num_leased + self._staged.num_pins
        num_pinned += self._storage.writes.num_pinned
        if self._index.num_readers != num_pinned:
            raise AccountingError(f"pages have {self._index.num_readers} readers; {num_pinned} are on record")
