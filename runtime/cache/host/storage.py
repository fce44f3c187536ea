"""HostMemory's use of L3, whose storage actor comes and goes."""

from collections import Counter, deque

from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.cache.host.events import (
    HostEffect,
    StorageFlushed,
    StorageRetired,
)
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.lookups import HostLookups
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.repairs import HostRepairs
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.storage_probes import StorageProbes
from raydix.runtime.cache.host.unwritten import Turn
from raydix.runtime.cache.host.writes import HostWrites
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, StorageStatus

_PIECE = 256
"""The number of overdue batches that are given up with one event."""


class HostStorage:
    """Owns: lookups, reads, writes, repairs and probes, which are what L3 is used for."""

    def __init__(
        self,
        settings: HostSettings,
        index: HostIndex,
        staged: StagedPages,
        effects: list[HostEffect],
        counters: Counter[str],
    ) -> None:
        storage = settings.storage
        self._min_tokens = storage.min_tokens
        self._staged = staged
        self._index = index
        self._effects = effects
        self._counters = counters

        self.orders = StorageOrders(
            storage, index.page_bytes, effects, counters, is_in_use=settings.has_storage
        )
        self.writes = HostWrites(storage, index, self.orders, effects, counters)
        self.repairs = HostRepairs(storage, index, self.orders, counters)
        self.reads = HostReads(index, staged, self.orders, effects, counters)
        self.lookups = HostLookups(settings, index, staged, self.orders, self.reads, counters)
        self._probes = StorageProbes(index, self.reads, self.orders, effects)
        self._is_retiring = False
        self._overdue: deque[BatchId] = deque()
        """Batches that are to be given up, some at a time."""

    @property
    def status(self) -> StorageStatus:
        """What the Scheduler is to know of L3."""
        return StorageStatus(
            is_in_use=self.orders.is_in_use,
            max_staged_pages=self._staged.max_pages,
            min_tokens=self._min_tokens,
            answer_s=self.orders.answer_s,
        )

    @property
    def num_pending(self) -> int:
        """Pages to be written or asked about; an upper bound while L3 is asked about all of L2."""
        return self.writes.num_pending + self.repairs.num_pending

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would go on with what did not fit into this turn."""
        return bool(self.repairs.has_work or self._overdue or self.lookups.has_work)

    @property
    def next_deadline_s(self) -> float | None:
        """The time at which time alone changes something; None: never."""
        times = [
            self.orders.next_overdue_s,
            self._probes.next_due_s,
            self.writes.next_due_s,
            self.repairs.next_retry_s,
        ]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def attach(self, connection: ConnectionId, pid: int, patience_s: float | None) -> None:
        """Use the storage actor that has attached, whose backend may hold anything."""
        self.orders.attach(connection, pid, patience_s)
        self.writes.trust_anew()
        self.repairs.ask_about_all()

    def lose(self) -> tuple[list[HostPageId], list[HostPageId]]:
        """Forget the storage actor, which is gone.

        Returns the pages that it may still write and those that it may read, which are the caller's
        now.
        """
        self.orders.lose()
        self.repairs.clear()
        held = self.lookups.lose() + self._probes.lose(), self.writes.lose()
        if self.orders.is_in_use:
            self._counters["storage_losses"] += 1
        else:
            self.writes.retire()
        return held

    def retire(self) -> None:
        """Use L3 no more: nobody waits for it, and it gets no more orders."""
        self.orders.retire()
        self.lookups.retire()
        self.writes.retire()
        self.repairs.clear()

    def report_when_retired(self) -> None:
        """Say `StorageRetired` as soon as nothing is under way any more."""
        self._is_retiring = True

    def flush(self) -> None:
        """Remove every object of this namespace."""
        if self.orders.is_in_use:
            self.writes.flush()
        else:
            self._effects.append(StorageFlushed(ObjectStatus.MISSING))

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the storage actor's answer to a batch."""
        self.orders.finish(done, now_s)
        if not self.writes.finish(done, now_s) and not self.repairs.finish(done, now_s):
            self._probes.finish(done)
            self.lookups.finish(done, now_s)

    def advance(self, now_s: float) -> None:
        """Give up what is overdue, and order what may be ordered; called after each event."""
        self._overdue.extend(self.orders.take_overdue(now_s))
        for _ in range(min(_PIECE, len(self._overdue))):
            batch_id = self._overdue.popleft()
            self.lookups.give_up(batch_id)
            self.writes.give_up_flush(batch_id)
            self.repairs.give_up(batch_id, now_s)

        for group, key in self.orders.missing.take_news():
            page_id = self._index.find(group, key)
            if page_id is not None and self.writes.add(page_id, Turn.FILL):
                self._counters["l3_pages_lacking"] += 1

        self._probes.dispatch(now_s)
        self.lookups.dispatch(now_s)
        self.writes.dispatch(now_s)
        self.repairs.dispatch(now_s)

        if self._is_retiring and not self.orders.num_unanswered:
            self._is_retiring = False
            self._effects.append(StorageRetired())
