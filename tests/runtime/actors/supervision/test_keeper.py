import asyncio
import time
from typing import Any

import pytest

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.supervision.keeper import Keeper
from tests.runtime.actors.supervision.fake_actor import QUICK, FakeActor, until


class Bench:
    """A keeper with what it made."""

    def __init__(self, bring_up_error: Exception | None = None, fails_from: int = 1) -> None:
        self.made: list[FakeActor] = []
        self.num_ends = 0
        self.hangs_in_make = False
        self.num_left_in_make = 0
        self._error = bring_up_error
        self._fails_from = fails_from
        self.keeper = Keeper(
            "gpu0", self._make, self._bring_up, on_end=self._on_end, supervision=QUICK
        )

    async def _make(self, incarnation: int) -> FakeActor:
        if self.hangs_in_make:
            try:
                await asyncio.Event().wait()
            finally:
                self.num_left_in_make += 1
        self.made.append(FakeActor(incarnation))
        return self.made[-1]

    async def _bring_up(self, actor: Any, incarnation: int) -> None:
        if self._error is not None and incarnation >= self._fails_from:
            raise self._error

    def _on_end(self, incarnation: int, error: Exception | None) -> None:
        self.num_ends += 1


async def test_killed_actor_is_made_again_with_the_next_incarnation() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    first = await bench.keeper.serving()
    first.kill()
    await until(lambda: bench.keeper.actor not in (None, first))
    assert (await bench.keeper.serving()).pid == 2
    assert bench.keeper.num_restarts == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.num_ends == 2


async def test_hung_actor_is_killed_and_made_again() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    first = await bench.keeper.serving()
    bench.made[0].is_hung = True
    await until(lambda: bench.keeper.actor not in (None, first))
    assert bench.keeper.incarnation == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_crash_loop_ends_in_engine_dead() -> None:
    bench = Bench(OSError("the arena is gone"), fails_from=2)
    task = asyncio.create_task(bench.keeper.run())
    (await bench.keeper.serving()).kill()
    with pytest.raises(EngineDead, match="gpu0 ended 4 times"):
        await task
    assert len(bench.made) == 4


async def test_typed_error_of_the_first_start_reaches_the_caller() -> None:
    bench = Bench(ConfigError("no such memory"))
    with pytest.raises(ConfigError, match="no such memory"):
        await bench.keeper.run()


async def test_a_start_that_ends_with_a_process_says_whose() -> None:
    bench = Bench()
    meant = asyncio.Event()

    async def killed(actor: Any, incarnation: int) -> None:
        actor.kill()
        await meant.wait()

    keeper = Keeper("gpu0", bench._make, killed, on_end=lambda *_: None, supervision=QUICK)
    with pytest.raises(EngineDead, match="the process of gpu0 ended"):
        await keeper.run()


async def test_condemning_an_earlier_incarnation_changes_nothing() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    await bench.keeper.serving()
    bench.keeper.condemn("overdue", incarnation=7)
    for _ in range(10):
        await asyncio.sleep(0)
    assert bench.keeper.incarnation == 1
    bench.keeper.condemn("overdue", incarnation=1)
    await until(lambda: bench.keeper.incarnation > 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_end_returns_once_the_process_is_gone() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    await bench.keeper.serving()
    await bench.keeper.end("test")
    assert bench.made[0].is_ended
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_actor_that_ends_for_anothers_sake_is_not_given_up() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    for _ in range(2 * (QUICK.max_crashes + 1)):
        await bench.keeper.serving()
        await bench.keeper.end("another one is restarted")
    await bench.keeper.serving()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_actor_that_is_to_end_before_it_has_ever_served_is_started_later() -> None:
    bench = Bench()
    bench.hangs_in_make = True
    task = asyncio.create_task(bench.keeper.run())
    await until(lambda: bench.keeper.incarnation == 1)
    await asyncio.sleep(0)
    bench.hangs_in_make = False
    await bench.keeper.end("the engine sleeps")
    await bench.keeper.serving()
    assert bench.keeper.incarnation == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_stall_of_the_keepers_own_loop_is_not_the_actors_silence() -> None:
    bench = Bench()
    task = asyncio.create_task(bench.keeper.run())
    await bench.keeper.serving()
    for _ in range(3):
        await until(lambda: bench.made[0].is_asked)
        time.sleep(4 * QUICK.heartbeat_deadline_s)  # the stall: nothing can be heard
        await asyncio.sleep(0.01)
    assert bench.keeper.incarnation == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_waits_for_an_actor_that_is_given_up_hears_why() -> None:
    bench = Bench(OSError("the arena is gone"), fails_from=2)
    task = asyncio.create_task(bench.keeper.run())
    (await bench.keeper.serving()).kill()
    await until(lambda: bench.keeper.actor is None)
    with pytest.raises(EngineDead, match="gpu0 ended 4 times"):
        await bench.keeper.serving()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_waits_for_an_actor_when_the_engine_ends_is_let_go() -> None:
    bench = Bench()
    bench.hangs_in_make = True
    task = asyncio.create_task(bench.keeper.run())
    waiting = asyncio.create_task(bench.keeper.serving())
    await until(lambda: bench.keeper.incarnation == 1)
    task.cancel()
    with pytest.raises(EngineDead, match="not kept"):
        await waiting
    assert bench.num_left_in_make == 1


async def test_an_actor_that_is_never_made_counts_as_ended_and_can_be_condemned() -> None:
    bench = Bench()
    bench.hangs_in_make = True
    task = asyncio.create_task(bench.keeper.run())
    await until(lambda: bench.keeper.incarnation == 1)
    await asyncio.sleep(0)
    bench.keeper.condemn("tired of waiting")
    with pytest.raises(EngineDead, match="tired of waiting"):
        await asyncio.gather(bench.keeper.gone(1), task)
    assert bench.num_left_in_make == 1
    assert bench.made == []
