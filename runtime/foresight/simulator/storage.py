"""L3, which all nodes share: which objects there are, and how long each node's actor takes."""

import itertools
from collections.abc import Callable

from raydix.ids import ConnectionId
from raydix.runtime.cache.host import events
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.foresight.simulator.world import World
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

_FIRST_NUMBER = 1 << 40
"""Connections to storage are numbered apart from those that are dialled."""


class SharedStore:
    """Owns: the objects of L3, in the order in which they go."""

    def __init__(self, world: World, max_bytes: int | None, object_bytes: tuple[int, ...]) -> None:
        """`object_bytes`: the size of an object of each KV group."""
        self._world, self._object_bytes = world, object_bytes
        self._objects = StoredObjects(max_bytes)

    def object_bytes(self, group: int) -> int:
        """The size of an object of a KV group."""
        return self._object_bytes[group]

    def look(self, group: int, keys: bytes) -> list[ObjectStatus]:
        """Which of these objects there are."""
        there, missing = ObjectStatus.OK, ObjectStatus.MISSING
        return [there if name in self._objects else missing for name in _names(group, keys)]

    def read(self, group: int, keys: bytes) -> list[ObjectStatus]:
        """The same, and those that are there are used now."""
        self._objects.advance(self._world.now_s)
        statuses = self.look(group, keys)
        pairs = zip(_names(group, keys), statuses, strict=True)
        self._objects.touch([name for name, status in pairs if status is ObjectStatus.OK])
        return statuses

    def write(self, group: int, keys: bytes) -> list[ObjectStatus]:
        """Keep objects; those that go first make room."""
        self._objects.advance(self._world.now_s)
        size, statuses = self._object_bytes[group], []
        for name in _names(group, keys):
            if name in self._objects:
                statuses.append(ObjectStatus.OK)
                continue
            num_fitting, _ = self._objects.reserve([size])
            if num_fitting:
                self._objects.release(size)
                self._objects.add({name: size})
            statuses.append(ObjectStatus.OK if num_fitting else ObjectStatus.FULL)
        return statuses

    def retain(self, hint: RetainObjects) -> None:
        """A hint says what comes next of some objects."""
        self._objects.advance(self._world.now_s)
        self._objects.retain(_names(hint.group, hint.keys), hint.user, hint.retention)


def _names(group: int, keys: bytes) -> list[str]:
    return [f"{group}/{key.hex()}" for key in split_keys(keys)]


class NodeStorage:
    """Owns: a node's storage actor: what it is told, and when each direction is free."""

    def __init__(self, world: World, store: SharedStore) -> None:
        self._world, self._store = world, store
        self.pid = world.processes.start()
        self._numbers = itertools.count(_FIRST_NUMBER)
        self._number: ConnectionId | None = None
        self._post: Callable[[events.HostEvent], None] | None = None
        self._read_free_s = self._write_free_s = 0.0

    def attach(self, post: Callable[[events.HostEvent], None]) -> ConnectionId:
        """A HostMemory is there, which is told by `post` what becomes of its orders."""
        self._number, self._post = ConnectionId(next(self._numbers)), post
        return self._number

    def detach(self) -> None:
        """HostMemory has been killed: nobody hears of what is under way."""
        self._number = self._post = None

    def order(self, connection: ConnectionId, order: events.StorageOrder) -> None:
        """Carry an order out in its time, reads and writes each one after the other."""
        if connection != self._number:
            return
        world, profile = self._world, self._world.profile
        match order:
            case CancelBatch():
                return
            case RetainObjects():
                self._store.retain(order)
            case DeleteObjects():
                raise AssertionError("nobody empties L3")
            case AskExists():
                ended_s = world.now_s + profile.storage_exists_s
                self._answer(ended_s, order, self._store.look)
            case ReadObjects():
                seconds = world.draw_copy_s(profile.storage_read, self._bytes_of(order))
                self._read_free_s = max(world.now_s, self._read_free_s) + seconds
                self._answer(self._read_free_s, order, self._store.read)
            case WriteObjects():
                seconds = world.draw_copy_s(profile.storage_write, self._bytes_of(order))
                self._write_free_s = max(world.now_s, self._write_free_s) + seconds
                self._answer(self._write_free_s, order, self._store.write)

    def _bytes_of(self, order: ReadObjects | WriteObjects) -> int:
        return len(order.host_page_ids) * self._store.object_bytes(order.group)

    def _answer(
        self,
        time_s: float,
        order: AskExists | ReadObjects | WriteObjects,
        carry_out: Callable[[int, bytes], list[ObjectStatus]],
    ) -> None:
        number, began_s = self._number, self._world.now_s
        assert number is not None

        def answer() -> None:
            statuses = bytes(carry_out(order.group, order.keys))
            if self._post is not None and self._number == number:
                seconds = self._world.now_s - began_s
                done = ObjectsDone(batch_id=order.batch_id, statuses=statuses, seconds=seconds)
                self._post(events.FromStorage(number, done))

        self._world.clock.at(time_s, answer)
