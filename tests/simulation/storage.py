"""A modelled storage actor: objects by key, verified reads, random delays, failures and bad objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydix.ids import BatchId, PageKey
from raydix.runtime.cache import host_events
from raydix.runtime.messages.host import (
    CancelBatch,
    DeleteObjects,
    FindObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
    split_keys,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


PagePart = tuple[int | None, ...]
"""What one rank's part of a page holds, per slot."""


class SimulatedStorage:
    """Owns: L3's objects. Whether an object can be used is decided when it is read, as a checksum would."""

    def __init__(self, cluster: Cluster, pid: int) -> None:
        self.cluster = cluster
        self.pid = pid
        self.is_up = True
        self.exit_s = float("inf")
        """A killed storage process touches no page after this."""
        self.objects: dict[PageKey, list[PagePart]] = {}
        self.bad_keys: set[PageKey] = set()
        self.num_reads: dict[PageKey, int] = {}
        self._busy: set[BatchId] = set()

    @property
    def is_busy(self) -> bool:
        """Some batch may still touch the arena."""
        return bool(self._busy)

    def receive(self, order: host_events.StorageOrder) -> None:
        """An order is on its way; it is carried out after a random delay, out of order."""
        incarnation = self.cluster.host_incarnation
        match order:
            case CancelBatch():
                return
            case DeleteObjects():
                self.objects.clear()
                self._answer(order.batch_id, [ObjectStatus.OK], incarnation)
            case FindObjects():
                self.cluster.after(self._delay_s(), lambda: self._find(order, incarnation))
            case ReadObjects():
                self._busy.add(order.batch_id)
                self.cluster.after(self._delay_s(), lambda: self._read(order, incarnation))
            case WriteObjects():
                self._busy.add(order.batch_id)
                self.cluster.after(self._delay_s(), lambda: self._write(order, incarnation))

    def _delay_s(self) -> float:
        return self.cluster.draw(self.cluster.faults.storage_s)

    def _fails(self) -> bool:
        return self.cluster.random.random() < self.cluster.faults.storage_failure_fraction

    def _is_full(self) -> bool:
        fraction = self.cluster.faults.storage_full_fraction
        return fraction > 0.0 and self.cluster.random.random() < fraction

    def _find(self, order: FindObjects, incarnation: int) -> None:
        if self._fails():
            statuses = [ObjectStatus.IO_ERROR] * len(split_keys(order.keys))
        else:
            found = {True: ObjectStatus.OK, False: ObjectStatus.MISSING}
            statuses = [found[key in self.objects] for key in split_keys(order.keys)]
        self._answer(order.batch_id, statuses, incarnation)

    def _read(self, order: ReadObjects, incarnation: int) -> None:
        if self.cluster.now_s > self.exit_s:
            return
        statuses = []
        for key, host_page in zip(split_keys(order.keys), order.host_page_ids.tolist(), strict=True):
            self.num_reads[key] = self.num_reads.get(key, 0) + 1
            if self._fails():
                statuses.append(ObjectStatus.IO_ERROR)
            elif key not in self.objects:
                statuses.append(ObjectStatus.MISSING)
            elif key in self.bad_keys:
                self.cluster.arena[host_page] = [(None,) * self.cluster.settings.page_size] * len(self.objects[key])
                statuses.append(ObjectStatus.BAD_CHECKSUM)
                self.bad_keys.remove(key)
                del self.objects[key]
            else:
                self.cluster.arena[host_page] = list(self.objects[key])
                statuses.append(ObjectStatus.OK)
        self._answer(order.batch_id, statuses, incarnation)

    def _write(self, order: WriteObjects, incarnation: int) -> None:
        if self.cluster.now_s > self.exit_s:
            return
        statuses = []
        for key, host_page in zip(split_keys(order.keys), order.host_page_ids.tolist(), strict=True):
            if self._fails():
                statuses.append(ObjectStatus.IO_ERROR)
            elif self._is_full():
                statuses.append(ObjectStatus.FULL)
            else:
                self.objects[key] = list(self.cluster.arena[host_page])
                if self.cluster.random.random() < self.cluster.faults.bad_object_fraction:
                    self.bad_keys.add(key)
                statuses.append(ObjectStatus.OK)
        self._answer(order.batch_id, statuses, incarnation)

    def _answer(self, batch_id: BatchId, statuses: list[ObjectStatus], incarnation: int) -> None:
        self._busy.discard(batch_id)
        done = ObjectsDone(batch_id=batch_id, statuses=bytes(statuses))

        def arrive() -> None:
            if incarnation == self.cluster.host_incarnation and self is self.cluster.storage:
                self.cluster.to_host(host_events.FromStorage(done))

        self.cluster.deliver("storage>host", arrive)
