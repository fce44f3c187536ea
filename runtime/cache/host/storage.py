"""HostMemory's use of L3, whose storage actor comes and goes."""

from raydix.ids import ConnectionId, HostPageId
from raydix.runtime.cache.host.events import StorageFlushed, StorageRetired
from raydix.runtime.cache.host.fetching import Fetching, Shared
from raydix.runtime.cache.host.repairs import HostRepairs
from raydix.runtime.cache.host.retention import HostRetention
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.stored_objects import StoredObjects
from raydix.runtime.cache.host.unwritten import Turn
from raydix.runtime.cache.host.writes import HostWrites
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, PageSource, StorageStatus


class HostStorage:
    """Owns: what is fetched from L3, and writes and repairs, which are what else it is used for."""

    def __init__(self, settings: HostSettings, shared: Shared, retention: HostRetention) -> None:
        storage, index = settings.storage, shared.index
        effects, counters = shared.effects, shared.counters
        self._min_tokens = storage.min_tokens
        self._retention = retention
        self._staged = shared.staged
        self._index = index
        self._effects = effects
        self._counters = counters

        self.fetching = Fetching(
            settings, shared, label="l3", brings=PageSource.L3, is_in_use=settings.has_storage
        )
        self.orders = self.fetching.orders
        self.objects = StoredObjects(storage.max_told_objects)
        self.writes = HostWrites(storage, index, self.orders, effects, counters)
        self.repairs = HostRepairs(storage, index, self.orders, counters)
        self._is_retiring = False

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

    def figures(self) -> dict[str, str | float]:
        """What waits to be written, and how L3 answers."""
        return {
            "l3_writes_pending": self.num_pending,
            "l3_writes_put_off": self.writes.num_put_off,
            **self.orders.figures(),
        }

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would go on with what did not fit into this turn."""
        return self.repairs.has_work or self.fetching.has_work

    @property
    def next_deadline_s(self) -> float | None:
        """The time at which time alone changes something; None: never."""
        times = [
            self.fetching.next_deadline_s,
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
        self.objects.forget_all()
        self.repairs.clear()
        held = self.fetching.lose(), self.writes.lose()
        if self.orders.is_in_use:
            self._counters["storage_losses"] += 1
        else:
            self.writes.retire()
        return held

    def retire(self) -> None:
        """Use L3 no more: nobody waits for it, and it gets no more orders."""
        self.objects.forget_all()
        self.orders.retire()
        self.fetching.lookups.retire()
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
        order = self.orders.finish(done, now_s)
        if self.orders.is_in_use:
            self.objects.note(order, done)
        if not self.writes.finish(done, now_s) and not self.repairs.finish(done, now_s):
            self.fetching.finish(done, now_s)

    def advance(self, now_s: float) -> None:
        """Give up what is overdue, and order what may be ordered; called after each event."""
        for batch_id in self.fetching.give_up_some(now_s):
            self.writes.give_up_flush(batch_id)
            self.repairs.give_up(batch_id, now_s)

        for group, key in self.orders.missing.take_news():
            page_id = self._index.find(group, key)
            if page_id is not None and self.writes.add(page_id, Turn.FILL):
                self._counters["l3_pages_lacking"] += 1

        if written := self.writes.take_written():
            self._retention.note_written(written, now_s)
        self.orders.retain(self._retention.take_object_hints())
        self.fetching.dispatch(now_s)
        self.writes.dispatch(now_s)
        self.repairs.dispatch(now_s)

        if self._is_retiring and not self.orders.num_unanswered:
            self._is_retiring = False
            self._effects.append(StorageRetired())
