"""The storage actor's links: HostMemory goes and comes back, and finds nothing under way."""

import asyncio
import errno
import math
import os
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raydix.ids import BatchId, LookupId
from raydix.runtime.actors.links import frames
from raydix.runtime.actors.links.blocking_link import BlockingSocketLink
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.actors.storage import StorageActor, StorageSetup
from raydix.runtime.config.l3 import FakeL3Section
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import (
    CancelBatch,
    Lookup,
    ObjectsDone,
    ObjectStatus,
    WriteObjects,
)
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, make_key

SECRET = b"secret"
PATIENCE_S = 20.0
OK, CANCELLED = ObjectStatus.OK, ObjectStatus.CANCELLED


class World:
    """A storage actor, and this test as its HostMemory."""

    def __init__(self, folder: Path) -> None:
        self.arena = HostArena.create(LAYOUT, 16 * LAYOUT.host_page_bytes(0), 1, "/dev/shm")
        self.address = f"unix:{folder}/host"
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.failed = asyncio.Event()
        self.actor = StorageActor(name="storage", incarnation=1, on_fatal=self.failed.set)

    async def start(self) -> None:
        await self.start_only()
        await self.actor.serve()

    async def start_only(self) -> None:
        await self.actor.start(
            StorageSetup(
                backend=FakeL3Section(backend="fake", patience_s=7.0),
                namespace=NAMESPACE,
                arena=self.arena.location,
                host_address=self.address,
                secret=SECRET,
            )
        )

    async def listen(self) -> None:
        own = Hello(role=Role.HOST_MEMORY, name="host", incarnation=1, pid=os.getpid())
        self.listener = await listen(self.address, own, SECRET, self.links.put)

    async def link(self) -> Link:
        return await asyncio.wait_for(self.links.get(), PATIENCE_S)

    @property
    def backend(self) -> FakeBackend:
        backend = self.actor.backend
        assert isinstance(backend, FakeBackend)
        return backend


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.start()
    await world.listen()
    yield world
    world.backend.set_faults(Faults())
    await world.actor.stop()
    await world.listener.close()
    assert not world.failed.is_set()
    world.arena.close()


async def test_hello_says_how_long_answers_may_take(world: World) -> None:
    assert (await world.link()).hello.patience_s == 7.0


def write(batch: int, page: int = 0) -> WriteObjects:
    return WriteObjects(
        batch_id=BatchId(batch), keys=make_key(page), host_page_ids=int32_array([page])
    )


async def answer(link: Link) -> tuple[int, ObjectStatus]:
    done = await asyncio.wait_for(link.receive(), PATIENCE_S)
    assert isinstance(done, ObjectsDone)
    return int(done.batch_id), ObjectStatus(done.statuses[0])


async def test_next_host_memory_hears_nothing_of_what_the_former_has_ordered(world: World) -> None:
    for _ in range(5):
        world.backend.set_faults(Faults(latency_s=math.inf))
        former = await world.link()
        for batch in range(10):
            former.send(write(batch))
        while world.actor.stats()["active_batches"] < 10:
            await asyncio.sleep(0.001)
        former.close()
        assert world.links.empty(), "something is under way"
        world.backend.set_faults(Faults())

        latter = await world.link()
        assert world.actor.stats()["active_batches"] == 0
        latter.send(write(7, page=1))
        assert await answer(latter) == (7, OK)
        assert latter is not former
        latter.close()


async def test_batch_that_waits_is_cancelled_while_the_backend_hangs(world: World) -> None:
    link = await world.link()
    world.backend.set_faults(Faults(latency_s=math.inf))
    for batch in range(20):
        link.send(write(batch))
    for batch in range(10, 20):
        link.send(CancelBatch(batch_id=BatchId(batch)))
    link.send(write(20))
    while world.actor.stats()["active_batches"] < 21:
        await asyncio.sleep(0.001)
    world.backend.set_faults(Faults())
    told = dict([await answer(link) for _ in range(21)])
    assert {batch for batch, status in told.items() if status is CANCELLED} == set(range(10, 20))


async def test_peer_that_orders_nonsense_is_left_and_dialled_again(world: World) -> None:
    for _ in range(3):
        link = await world.link()
        link.send(Lookup(lookup_id=LookupId(1), keys=make_key(1), num_l1_pages=(0,)))
        with pytest.raises(LinkClosed):
            await asyncio.wait_for(link.receive(), PATIENCE_S)
    link = await world.link()
    link.send(write(1))
    assert await answer(link) == (1, OK)


async def test_host_memory_that_comes_back_late_is_found(world: World) -> None:
    link = await world.link()
    await world.listener.close()
    link.close()
    await asyncio.sleep(0.05)
    await world.listen()
    link = await world.link()
    link.send(write(1))
    assert await answer(link) == (1, OK)


async def test_actor_that_nobody_listens_to_can_be_stopped(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await asyncio.wait_for(world.actor.stop(), PATIENCE_S)
    world.arena.close()


async def test_actor_that_has_not_served_can_be_stopped(tmp_path: Path) -> None:
    actor = StorageActor(name="storage", incarnation=1)
    await asyncio.wait_for(actor.stop(), PATIENCE_S)


async def test_actor_that_is_stopped_serves_no_more(tmp_path: Path) -> None:
    for order in (("serve", "stop"), ("stop", "serve")):
        # Threads of other tests may still be about to end.
        before = {*threading.enumerate()}
        world = World(tmp_path)
        await world.start_only()
        await asyncio.gather(*(getattr(world.actor, each)() for each in order))
        names = [each.name for each in threading.enumerate() if each not in before]
        assert not [name for name in names if name.startswith("storage_")]
        await world.actor.stop()
        world.arena.close()


async def test_half_a_frame_that_went_out_ends_the_link(world: World) -> None:
    link = await world.link()
    link.send(write(0))
    assert await answer(link) == (0, OK)
    own = world.actor._link
    assert isinstance(own, BlockingSocketLink)
    own._connection = HalfSends(own._connection)  # type: ignore[assignment]
    link.send(write(1))
    with pytest.raises(LinkClosed):
        await asyncio.wait_for(link.receive(), PATIENCE_S)
    link = await world.link()
    link.send(write(1))
    assert await answer(link) == (1, OK)


async def test_answer_too_large_for_a_frame_ends_the_link_and_it_is_dialled_again(
    world: World,
) -> None:
    for _ in range(10):
        link = await world.link()
        link.send(write(0))
        assert await answer(link) == (0, OK)
        own = world.actor._link
        assert own is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "MAX_FRAME_BYTES", 1)
            with pytest.raises(LinkClosed):
                await asyncio.to_thread(own.send, ObjectsDone(batch_id=BatchId(1), statuses=b""))
        with pytest.raises(LinkClosed):
            await asyncio.wait_for(link.receive(), PATIENCE_S)


class HalfSends:
    """A socket that sends the beginning alone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data[:6])
        raise OSError(errno.ENOBUFS, "no buffer space available")
