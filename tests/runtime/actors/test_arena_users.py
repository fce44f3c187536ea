"""The list of an arena's users: what one HostMemory noted the next one reads, whole."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from raydix.errors import ConfigError
from raydix.ids import SchedulerName
from raydix.runtime.actors.arena_users import OF_HOST_MEMORY, ArenaUsers
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.cache.host.arena_geometry import USERS_BYTES

ONE, OTHER = SchedulerName("one"), SchedulerName("other \u4e2d")
OWN = ProcessId.of(os.getpid())
ENDED = ProcessId(os.getpid(), OWN.started + 1)


@pytest.fixture
def region() -> memoryview:
    return memoryview(bytearray(USERS_BYTES))


def test_new_arena_has_no_users(region: memoryview) -> None:
    assert ArenaUsers(region).names == ()


def test_next_host_memory_finds_whom_the_last_one_has_noted(region: memoryview) -> None:
    users = ArenaUsers(region)
    for name in (ONE, OTHER, ONE):
        users.add(name, OWN)
    found = ArenaUsers(region)
    assert found.names == (ONE, OTHER)
    assert found.processes(ONE) == (OWN,)
    found.remove(ONE)
    assert ArenaUsers(region).names == (OTHER,)


def test_list_is_whole_wherever_its_writer_is_killed(region: memoryview) -> None:
    users = ArenaUsers(region)
    users.add(ONE, OWN)
    before = bytes(region)
    users.add(OTHER, OWN)
    after = bytes(region)

    # All but the first byte lands first; any part of it may be missing.
    changed = [place for place in range(1, len(before)) if before[place] != after[place]]
    for num_written in range(len(changed) + 1):
        torn = bytearray(before)
        for place in changed[:num_written]:
            torn[place] = after[place]
        assert ArenaUsers(memoryview(torn)).names == (ONE,)
    assert ArenaUsers(memoryview(bytearray(after))).names == (ONE, OTHER)


def test_full_list_refuses_another_user_and_keeps_the_others(region: memoryview) -> None:
    users = ArenaUsers(region)
    for number in range(200):
        users.add(SchedulerName(f"{number:0100}"), OWN)
    with pytest.raises(ConfigError, match="as many as it can note"):
        users.add(SchedulerName("x" * len(region)), OWN)
    assert len(ArenaUsers(region).names) == 200


def test_processes_that_have_ended_are_forgotten_and_then_their_user(region: memoryview) -> None:
    users = ArenaUsers(region)
    users.add(ONE, OWN)
    for name in (ONE, OTHER):
        users.add(name, ENDED)
        users.drop_ended(name)
    users.drop_ended(OTHER)
    assert ArenaUsers(region).processes(ONE) == (OWN,)
    assert ArenaUsers(region).names == (ONE,)


def test_threads_that_note_processes_at_once_lose_none(region: memoryview) -> None:
    users = ArenaUsers(region)
    names = [SchedulerName(str(number)) for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda name: users.add(name, OWN), names)) == [None] * len(names)
    assert sorted(ArenaUsers(region).names) == sorted(names)


async def test_next_host_memory_waits_for_what_copied_for_the_last_one(region: memoryview) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    users = ArenaUsers(region)
    users.add(ONE, OWN)
    users.add(OF_HOST_MEMORY, ProcessId.of(child.pid))
    async with asyncio.timeout(30):
        waiting = asyncio.create_task(ArenaUsers(region).wait_former_ended())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        child.kill()
        await waiting
    child.communicate()
    assert ArenaUsers(region).engines == (ONE,)


async def test_process_is_told_from_a_later_one_with_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = ProcessId.of(child.pid)
    assert process.is_alive
    later = ProcessId(child.pid, process.started + 1)
    assert not later.is_alive
    async with asyncio.timeout(30):
        await later.wait_ended()
        waiting = asyncio.create_task(process.wait_ended())
        await asyncio.sleep(0)
        assert not waiting.done()
        child.kill()
        await waiting
    assert not process.is_alive
    child.wait()
    assert not ProcessId.of(child.pid).is_alive
