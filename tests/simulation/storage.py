"""A modelled storage actor: verified reads, random delays, failures and bad objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from raydix.ids import SEVERAL_USERS, BatchId, PageKey
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, split_keys
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)
from raydix.runtime.messages.retention import RetainObjects
from raydix.runtime.storage.capacity.stored_objects import StoredObjects

if TYPE_CHECKING:
    from tests.simulation.node import Node

PagePart = tuple[int | None, ...]
"""What one rank's part of a page holds, per cell."""
_Name = tuple[int, PageKey]
"""An object's group and key."""
_REDIAL_S = 0.01


def _names_of(order: AskExists | ReadObjects | WriteObjects) -> list[_Name]:
    return [(order.group, key) for key in split_keys(order.keys)]


def text_of(name: _Name) -> str:
    """The name of an object in the order of eviction."""
    return f"{name[0]}/{name[1].hex()}"


@dataclass(slots=True, eq=False)
class _Process:
    """One life of the storage actor."""

    pid: int
    exit_s: float = float("inf")
    """It touches no page after this."""
    is_alive: bool = True
    link: Link | None = None
    busy: set[BatchId] = field(default_factory=set)
    """Batches that may still touch the arena."""
    cancelled: set[BatchId] = field(default_factory=set)


class SimulatedStorage:
    """Owns: L3's objects and the actor's process. A read decides whether an object is usable.

    It evicts by the real order, as far as it is bounded. An actor whose link breaks finishes its
    batches, unheard, before it says hello again.
    """

    def __init__(self, node: Node, max_objects: int | None) -> None:
        self._node, self._world = node, node.world
        self._max_objects = max_objects
        self.order = StoredObjects(max_objects)
        """The objects as they go, by their texts."""
        self._process = _Process(self._world.processes.start())
        self.is_in_use = True
        """False while no backend is attached, between two."""
        self.objects: dict[_Name, list[PagePart]] = {}
        self.bad_names: set[_Name] = set()
        self.written: set[tuple[int, bytes]] = set()
        """Group and short key of each object that was ever written."""
        self.num_reads: Counter[_Name] = Counter()
        self.deadline_s = 0.0
        """What the latest read or write was given."""

    @property
    def is_busy(self) -> bool:
        """Some batch of the living actor may still touch the arena."""
        return bool(self._process.busy)

    def dial(self) -> None:
        """Say hello to HostMemory, once it is there."""
        process, host = self._process, self._node.host_memory
        if not process.is_alive or process.busy or process.link is not None:
            return
        if host is None or host.core is None:
            self._world.after(_REDIAL_S, self.dial)
            return
        link = process.link = self._world.new_link()
        link.listen(
            End.DIALLER, partial(self._receive, process, link), partial(self._lose_link, process)
        )
        link.carry(End.ACCEPTOR, lambda: self._say_hello(host.core, link))

    def _say_hello(self, core: object, link: Link) -> None:
        host = self._node.host_memory
        assert host is not None
        if host.core is core and core is not None:
            host.accept_storage(link, self._process.pid)
        else:
            link.close()

    def _lose_link(self, process: _Process) -> None:
        process.link = None
        if process is self._process:
            self.order.retain((), SEVERAL_USERS, None)
        if process.is_alive and not process.busy:
            self._world.after(self._world.draw_redial_s(), self.dial)

    def kill(self) -> None:
        """SIGKILL: its reads may linger; its objects stay; then a new actor is there."""
        if self._process.is_alive:
            self._world.num_faults["storage killed"] += 1
            exit_s = self._end(self._process)
            self._world.after(exit_s + self._draw_linger_s(), self._start)

    def flap(self) -> None:
        """The link to HostMemory breaks while both live."""
        if self._process.link is not None and self._process.link.is_open:
            self._world.num_faults["storage link broken"] += 1
            self._process.link.close()

    def switch(self) -> None:
        """Retire the backend, end its actor, done or not; attach another, perhaps empty, later."""
        if self._process.is_alive:
            self._world.num_faults["storage switched"] += 1
            retired = self._process
            self._node.to_host(host_events.RetireStorage())
            self._world.after(self._world.clock.draw(0.1), lambda: self._detach(retired))

    def _detach(self, retired: _Process) -> None:
        if not retired.is_alive:
            return
        exit_s = self._end(retired)
        self.is_in_use = False
        if self._world.random.random() < 0.5:
            self.objects, self.bad_names = {}, set()
        self._world.after(exit_s, lambda: self._node.to_host(host_events.DetachStorage()))
        self._world.after(exit_s + self._world.clock.draw(0.3), self._start)

    def _end(self, process: _Process) -> float:
        """Kill; how long the process lives on after its link has closed."""
        exit_s = self._draw_linger_s()
        process.is_alive = False
        process.exit_s = self._world.now_s + exit_s
        self._world.processes.end(process.pid, exit_s)
        if process.link is not None:
            process.link.close()
        return exit_s

    def _start(self) -> None:
        self._process = _Process(self._world.processes.start())
        self.is_in_use = True
        self.order = StoredObjects(self._max_objects)
        self.order.advance(self._world.now_s)
        self.order.add({text_of(name): 1 for name in self.objects})
        self.dial()

    def _draw_linger_s(self) -> float:
        return self._world.clock.draw(self._world.faults.linger_s)

    def _receive(self, process: _Process, link: Link, order: host_events.StorageOrder) -> None:
        """An order is carried out after a random delay, out of order."""
        if isinstance(order, RetainObjects):
            self._retain(order)
            return
        delay_s = self._draw_delay_s(order)
        match order:
            case CancelBatch():
                if order.batch_id in process.busy and self._world.random.random() < 0.5:
                    process.cancelled.add(order.batch_id)
                return
            case DeleteObjects():
                carry_out: Callable[[], list[ObjectStatus]] = self._delete
            case AskExists():
                carry_out = partial(self._exists, order)
            case ReadObjects():
                self.deadline_s = order.deadline_s
                carry_out = partial(self._read, order, process)
            case WriteObjects():
                self.deadline_s = order.deadline_s
                carry_out = partial(self._write, order)
        process.busy.add(order.batch_id)
        self._world.after(delay_s, lambda: self._finish(order.batch_id, process, link, carry_out))

    def _retain(self, hint: RetainObjects) -> None:
        self.order.advance(self._world.now_s)
        names = [text_of((hint.group, key)) for key in split_keys(hint.keys)]
        self.order.retain(names, hint.user, hint.retention)

    def _drop(self, name: _Name) -> None:
        self.bad_names.discard(name)
        del self.objects[name]
        self.order.remove(text_of(name))

    def _make_room(self) -> bool:
        """Evict what goes first, if there is no room for an object; False: nothing makes any."""
        num_fitting, victims = self.order.reserve([1])
        self.order.release(num_fitting)
        gone = [name for name in self.objects if text_of(name) in victims] if victims else []
        for name in gone:
            self.bad_names.discard(name)
            del self.objects[name]
        return num_fitting > 0

    def _draw_delay_s(self, order: host_events.StorageOrder) -> float:
        faults = self._world.faults
        lag_s = faults.exists_lag_s if isinstance(order, AskExists) else faults.storage_lag_s
        return self._world.clock.draw(faults.storage_s) + lag_s

    def _finish(
        self,
        batch_id: BatchId,
        process: _Process,
        link: Link,
        carry_out: Callable[[], list[ObjectStatus]],
    ) -> None:
        if self._world.now_s > process.exit_s:
            return
        self.order.advance(self._world.now_s)
        statuses = carry_out()
        process.busy.discard(batch_id)
        process.cancelled.discard(batch_id)
        if process.is_alive:
            link.send(End.ACCEPTOR, ObjectsDone(batch_id=batch_id, statuses=bytes(statuses)))
        if process.link is None:
            self.dial()

    def _fails(self) -> bool:
        return self._world.random.random() < self._world.faults.storage_failure_fraction

    def _is_full(self) -> bool:
        fraction = self._world.faults.storage_full_fraction
        return fraction > 0.0 and self._world.random.random() < fraction

    def _delete(self) -> list[ObjectStatus]:
        for name in list(self.objects):
            self._drop(name)
        return [ObjectStatus.OK]

    def _exists(self, order: AskExists) -> list[ObjectStatus]:
        names = _names_of(order)
        if self._fails():
            return [ObjectStatus.IO_ERROR] * len(names)
        return [ObjectStatus.OK if name in self.objects else ObjectStatus.MISSING for name in names]

    def _read(self, order: ReadObjects, process: _Process) -> list[ObjectStatus]:
        if order.batch_id in process.cancelled:
            return [ObjectStatus.CANCELLED] * len(order.host_page_ids)
        pairs = zip(_names_of(order), order.host_page_ids.tolist(), strict=True)
        return [self._read_object(name, host_page) for name, host_page in pairs]

    def _read_object(self, name: _Name, host_page: int) -> ObjectStatus:
        self.num_reads[name] += 1
        if self._fails():
            return ObjectStatus.IO_ERROR
        if name not in self.objects:
            return ObjectStatus.MISSING
        if name not in self.bad_names:
            self._node.arena[host_page] = list(self.objects[name])
            self.order.touch([text_of(name)])
            return ObjectStatus.OK

        # What cannot be verified has been written all the same, and the backend drops it.
        empty_part: PagePart = (None,) * self._node.settings.page_size
        self._node.arena[host_page] = [empty_part] * len(self.objects[name])
        self._drop(name)
        return ObjectStatus.BAD_CHECKSUM

    def _write(self, order: WriteObjects) -> list[ObjectStatus]:
        pairs = zip(_names_of(order), order.host_page_ids.tolist(), strict=True)
        return [self._write_object(name, host_page) for name, host_page in pairs]

    def _write_object(self, name: _Name, host_page: int) -> ObjectStatus:
        if self._fails():
            return ObjectStatus.IO_ERROR
        if self._is_full() or (name not in self.objects and not self._make_room()):
            return ObjectStatus.FULL
        self.order.add({text_of(name): 1})
        self.objects[name] = list(self._node.arena[host_page])
        self.written.add((name[0], name[1][:MIRROR_KEY_BYTES]))
        if self._world.random.random() < self._world.faults.bad_object_fraction:
            self.bad_names.add(name)
        return ObjectStatus.OK
