import asyncio

import pytest

from raydix.errors import EngineDead
from raydix.runtime.actors.supervision.arena_registry import ArenaRegistry
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.tiers.host_arena import ArenaLocation

GEOMETRY = ArenaGeometry(
    num_slabs=1,
    slab_bytes=4096,
    slabs_offset=4096,
    pages_per_slab=4,
    page_bytes=(1024,),
    payload_bytes=(960,),
)


def at(pid: int, number: int = 1) -> ArenaLocation:
    """Where a process maps the arena of this number."""
    return ArenaLocation(pid=pid, fd=3, file=(0, number), geometry=GEOMETRY)


async def test_arena_is_awaited_until_a_host_memory_publishes_it() -> None:
    arenas = ArenaRegistry()
    waiting = asyncio.create_task(arenas.current())
    await asyncio.sleep(0)
    assert not waiting.done()
    arenas.publish(at(1))
    assert await waiting == (at(1), 1)


async def test_survivor_hands_the_same_arena_to_the_next_host_memory() -> None:
    arenas = ArenaRegistry()
    arenas.publish(at(1))
    arenas.note_holder(0, at(10), 1)
    arenas.withdraw()
    assert arenas.held() == at(10)
    assert arenas.publish(at(2)) == []
    assert await arenas.current() == (at(2), 1)


def test_new_arena_condemns_those_who_map_the_old_one() -> None:
    arenas = ArenaRegistry()
    arenas.publish(at(1))
    arenas.withdraw()
    arenas.note_holder(0, at(10), 1)  # its attach ended while the next HostMemory made a new arena
    assert arenas.publish(at(2, number=2)) == [0]
    with pytest.raises(EngineDead):
        arenas.note_holder(1, at(11), 1)


def test_arena_without_holders_is_lost() -> None:
    arenas = ArenaRegistry()
    arenas.publish(at(1))
    arenas.note_holder(0, at(10), 1)
    arenas.forget_holder(0)
    assert arenas.held() is None


def test_arena_of_others_condemns_those_alone_who_map_another_one() -> None:
    arenas = ArenaRegistry()
    arenas.publish(at(1))
    arenas.note_holder(0, at(10), 1)
    arenas.note_holder(1, at(11), 1)
    arenas.withdraw()
    arenas.forget_holder(1)
    assert arenas.publish(at(2, number=2)) == [0]
    _, epoch = asyncio.run(arenas.current())
    arenas.note_holder(1, at(12, number=2), epoch)
    assert arenas.publish(at(3, number=2)) == [0]
