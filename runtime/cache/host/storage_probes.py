"""Finds out, by the clock, whether an L3 that was left alone is back, or a slow one is fast again.

No request waits for that.
"""

from raydix.ids import BatchId, HostPageId
from raydix.runtime.cache.host.events import HostEffect, SetGenerations
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.unanswered import OrderKind
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone


class StorageProbes:
    """Owns: probes under way, and the FILLING page of each read among them.

    The page is given back unread. A probe repeats an earlier question or read. Writes probe by
    themselves, since nobody waits for them.
    """

    def __init__(
        self, index: HostIndex, reads: HostReads, orders: StorageOrders, effects: list[HostEffect]
    ) -> None:
        self._index = index
        self._allocator = reads
        self._orders = orders
        self._effects = effects
        self._reads: dict[BatchId, tuple[int, HostPageId]] = {}
        self.is_starved = False
        """Whether a read is due and L2 has no page for it: each event may bring one."""

    def dispatch(self, now_s: float) -> None:
        """Send the probes that are due."""
        if self._orders.is_probe_due(OrderKind.EXISTS, now_s):
            group, key = self._orders.take_probe_name(OrderKind.EXISTS)
            self._orders.ask_exists(group, key, now_s)

        self.is_starved = False
        if self._orders.is_probe_due(OrderKind.READ, now_s):
            group, key = self._orders.take_probe_name(OrderKind.READ)
            page_id = self._allocator.allocate(group)
            self.is_starved = page_id is None
            if page_id is not None:
                page_ids = int32_array((page_id,))
                self._effects.append(
                    SetGenerations(page_ids, int32_array((self._index.generation(page_id),)))
                )
                self._reads[self._orders.read(group, key, page_ids, now_s)] = (group, page_id)

    def finish(self, done: ObjectsDone) -> None:
        """Take the answer to a read; others are ignored."""
        group, page_id = self._reads.pop(done.batch_id, (0, None))
        if page_id is not None:
            self._allocator.give_back(group, page_id)

    def lose(self) -> list[HostPageId]:
        """Forget the storage actor, which is gone. The FILLING pages pass to the caller."""
        held = [page_id for _, page_id in self._reads.values()]
        self._reads.clear()
        return held

    @property
    def next_due_s(self) -> float | None:
        """The time at which the next probe is due."""
        kinds = [OrderKind.EXISTS] if self.is_starved else [OrderKind.EXISTS, OrderKind.READ]
        times_s = [self._orders.probe_due_s(kind) for kind in kinds]
        return min((time_s for time_s in times_s if time_s is not None), default=None)
