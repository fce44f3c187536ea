"""The HostMemory actor's links: each has a number, and nothing meant for one goes to another."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from raydix.ids import LeaseId, LookupId, SchedulerName
from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.host_memory import HostMemoryActor, HostMemorySetup
from raydix.runtime.actors.links.link import Link
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.cache.host.events import ToScheduler
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import (
    AskExists,
    CommitPages,
    CopiesDrained,
    LeasePages,
    Lookup,
    LookupProgress,
    ObjectsDone,
    PagesGranted,
    PagesLeased,
    ReadObjects,
    StorageStatus,
)
from tests.runtime.actors.test_outbox import RecordingLink
from tests.runtime.storage.stores import LAYOUT, make_key

SECRET = b"secret"
PATIENCE_S = 20.0
Wanted = TypeVar("Wanted")


def hello(role: Role) -> Hello:
    return Hello(role=role, name="x", incarnation=1, pid=os.getpid())


class World:
    """A running HostMemory, and this test as Scheduler and as storage."""

    def __init__(self, folder: Path) -> None:
        self.actor = HostMemoryActor(name="host", incarnation=1)
        self.others: list[Listener] = []
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self._scheduler_address = f"unix:{folder}/scheduler"
        self._storage_address = f"unix:{folder}/storage"

    async def start(self) -> None:
        self.listener = await listen(
            self._scheduler_address, hello(Role.SCHEDULER), SECRET, self.links.put
        )
        await self.actor.create_arena(LAYOUT, 64 * LAYOUT.host_page_bytes(0))
        settings = HostSettings(
            page_size=LAYOUT.page_size, storage=StorageSettings(min_tokens=1), has_storage=True
        )
        setup = HostMemorySetup(
            settings=settings, storage_address=self._storage_address, storage_secret=SECRET
        )
        assert self.actor.arena is not None
        await self.actor.start(setup, ArenaUsers(self.actor.arena.users))
        self.actor.follow(SchedulerName("first"), self._scheduler_address, SECRET)

    async def follow_another(self, name: str) -> asyncio.Queue[Link]:
        """Let it follow a second Scheduler; returns where its links come."""
        links: asyncio.Queue[Link] = asyncio.Queue()
        address = f"{self._scheduler_address}-{name}"
        self.others.append(await listen(address, hello(Role.SCHEDULER), b"other", links.put))
        self.actor.follow(SchedulerName(name), address, b"other")
        return links

    async def connect_storage(self) -> Link:
        return await connect(self._storage_address, hello(Role.STORAGE), SECRET)

    async def stop(self) -> None:
        await self.actor.stop()
        for listener in (self.listener, *self.others):
            await listener.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.start()
    yield world
    await world.stop()


async def receive(link: Link, kind: type[Wanted]) -> Wanted:
    """The next message, which must be of this kind."""
    async with asyncio.timeout(PATIENCE_S):
        message: Message = await link.receive()
    assert isinstance(message, kind)
    return message


async def test_scheduler_whose_link_broke_gets_pages_again_once_its_copies_are_drained(
    world: World,
) -> None:
    first = await world.links.get()
    await receive(first, StorageStatus)
    lost = await receive(first, PagesGranted)
    first.close()

    second = await world.links.get()
    await receive(second, StorageStatus)
    second.send(LeasePages(lease_id=LeaseId(1), keys=b"", starts=(0,)))
    assert (await receive(second, PagesLeased)).lease_id == 1, "and no page is granted before that"
    assert world.actor.stats()["pages_quarantined"] == len(lost.host_page_ids)
    second.send(CopiesDrained())
    await receive(second, PagesGranted)
    assert world.actor.stats()["pages_quarantined"] == 0


async def test_scheduler_that_is_forgotten_leaves_its_pages_to_the_other_one(world: World) -> None:
    first, second = await world.links.get(), await (await world.follow_another("second")).get()
    for link in (first, second):
        await receive(link, StorageStatus)
    granted = await receive(second, PagesGranted)
    second.close()
    first.send(LeasePages(lease_id=LeaseId(1), keys=b"", starts=(0,)))
    while not isinstance(await first.receive(), PagesLeased):
        pass
    while not world.actor.stats()["pages_quarantined"]:
        await asyncio.sleep(0)
    assert world.actor.stats()["pages_quarantined"] == len(granted.host_page_ids)

    world.actor.forget(SchedulerName("second"))
    first.send(LeasePages(lease_id=LeaseId(2), keys=b"", starts=(0,)))
    while not isinstance(await first.receive(), PagesLeased):
        pass
    assert world.actor.stats()["pages_quarantined"] == 0
    world.actor.check()


async def test_answer_made_for_a_lost_link_does_not_reach_the_next() -> None:
    actor = HostMemoryActor(name="host", incarnation=1)
    first, second = RecordingLink(), RecordingLink()
    connection = actor._links.open(first)
    actor._links.close(connection)
    actor._links.open(second)
    actor._carry_out(
        ToScheduler(
            connection, LookupProgress(lookup_id=LookupId(1), sources=(b"",), is_final=True)
        )
    )
    assert first.is_closed
    assert first.frames == second.frames == []


async def test_storage_process_that_connects_again_has_let_go_of_its_pages(world: World) -> None:
    scheduler = await world.links.get()
    await receive(scheduler, StorageStatus)
    await receive(scheduler, PagesGranted)
    storage = await world.connect_storage()
    await world.actor.wait_storage()
    keys = b"".join(map(make_key, range(4)))
    scheduler.send(Lookup(lookup_id=LookupId(1), keys=keys, num_l1_pages=(0,)))
    question = await receive(storage, AskExists)
    storage.send(ObjectsDone(batch_id=question.batch_id, statuses=bytes(4)))
    await receive(storage, ReadObjects)

    storage.close()
    while not (await receive(scheduler, LookupProgress)).is_final:
        pass
    assert world.actor.stats()["pages_quarantined"] == 4
    again = await world.connect_storage()
    await world.actor.wait_storage()
    scheduler.send(LeasePages(lease_id=LeaseId(1), keys=b"", starts=(0,)))
    await receive(scheduler, PagesLeased)
    assert world.actor.stats()["pages_quarantined"] == 0
    again.close()


async def test_flush_returns_the_number_of_pages_when_the_last_piece_is_done(world: World) -> None:
    scheduler = await world.links.get()
    await receive(scheduler, StorageStatus)
    granted = await receive(scheduler, PagesGranted)

    keys = b"".join(map(make_key, range(3)))
    pages, generations = (
        int32_array(granted.host_page_ids[:3]),
        int32_array(granted.generations[:3]),
    )
    scheduler.send(CommitPages(keys=keys, host_page_ids=pages, generations=generations))
    scheduler.send(LeasePages(lease_id=LeaseId(1), keys=make_key(0), starts=(0,)))
    while not isinstance(await scheduler.receive(), PagesLeased):
        pass

    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(world.actor.flush(), world.actor.flush()) == [2, 0]
