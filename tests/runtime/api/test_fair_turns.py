import asyncio
import gc
import threading
import weakref

import pytest

from raydix.errors import Cancelled
from raydix.runtime.api.fair_turns import FairTurns, in_one_step, result_of


@pytest.fixture
async def turns():
    turns = FairTurns(2, "test")
    yield turns
    turns.close()


def steps_of(name, number, told):
    for _ in range(number):
        told.append(name)
        yield
    return name


async def test_steps_return_and_raise(turns):
    def failing():
        yield
        raise ValueError("no")

    assert await turns.run("a", steps_of("x", 3, [])) == "x"
    assert await turns.run("a", in_one_step(lambda: 7)) == 7
    with pytest.raises(ValueError, match="no"):
        await turns.run("a", failing())
    assert result_of(steps_of("y", 2, [])) == "y"


async def test_failed_work_leaves_nothing_for_the_collector(turns):
    class Text:
        pass

    async def fail():
        text = Text()
        with pytest.raises(ValueError, match="no"):
            await turns.run("a", failing(text))
        return weakref.ref(text)

    def failing(text):
        yield
        raise ValueError("no")

    gc.collect()
    gc.disable()
    try:
        text = await fail()
        # The thread has yet to let go of it.
        async with asyncio.timeout(20):
            while text() is not None:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_short_work_waits_for_one_step_of_each_long_one(turns):
    told = []
    async with asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3"):
            group.create_task(turns.run("a", steps_of(name, 20, told)))
        group.create_task(turns.run("a", steps_of("short", 1, told)))
    assert told.index("short") <= 4


async def test_no_tenant_has_all_threads(turns):
    is_free = threading.Event()
    held = [asyncio.ensure_future(turns.run("a", in_one_step(is_free.wait))) for _ in range(5)]
    try:
        assert await turns.run("b", in_one_step(lambda: "told")) == "told"
        assert not any(each.done() for each in held)
    finally:
        is_free.set()
    assert all(await asyncio.gather(*held))


async def test_cancelled_work_takes_no_more_steps(turns):
    told, is_free, ended = [], threading.Event(), []

    def endless():
        try:
            while True:
                told.append(1)
                is_free.wait()
                yield
        finally:
            ended.append(1)

    first = asyncio.ensure_future(turns.run("a", endless()))
    second = asyncio.ensure_future(turns.run("a", steps_of("never", 1, told)))
    while not told:
        await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    is_free.set()
    assert await turns.run("a", in_one_step(lambda: "next")) == "next"
    assert told == [1]
    assert ended == [1]


async def test_whoever_waits_hears_that_it_is_closed():
    turns, is_free = FairTurns(2, "test"), threading.Event()
    waiting = [asyncio.ensure_future(turns.run("a", in_one_step(is_free.wait))) for _ in range(3)]
    await asyncio.sleep(0)
    turns.close()
    with pytest.raises(Cancelled):
        await turns.run("a", in_one_step(lambda: 1))
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, Cancelled) for each in told)
    is_free.set()
