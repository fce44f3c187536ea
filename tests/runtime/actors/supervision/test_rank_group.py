import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.supervision.rank_group import RankGroup
from tests.runtime.actors.supervision.fake_actor import QUICK, FakeActor, until

RANKS = (4, 5)


class SlowToDie(FakeActor):
    """Its process ends when the test says so."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.is_killed = False

    def release(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.is_killed = True


class Bench:
    """A group of two ranks with what it made, by rank and incarnation."""

    def __init__(self, first: type[FakeActor] = FakeActor, max_crashes: int = 3) -> None:
        """`first`: what the first incarnations are."""
        self.made: dict[tuple[int, int], FakeActor] = {}
        self.ended: list[int] = []
        self.errors: dict[tuple[int, int], Exception] = {}
        """The errors by which a rank and incarnation are not made."""
        self.loading: set[tuple[int, int]] = set()
        """The ranks that load until they are removed here."""
        self.starting: set[tuple[int, int]] = set()
        """The ranks that start until they are removed here."""
        self.started: list[tuple[int, int]] = []
        self._first = first
        self.group = RankGroup(
            RANKS,
            self._make,
            self._load,
            self._start,
            on_end=self.ended.append,
            supervision=replace(QUICK, max_crashes=max_crashes),
        )

    async def _make(self, rank: int, incarnation: int) -> FakeActor:
        if (rank, incarnation) in self.errors:
            raise self.errors[rank, incarnation]
        kind = self._first if incarnation == 1 else FakeActor
        self.made[rank, incarnation] = kind(incarnation)
        return self.made[rank, incarnation]

    async def _load(self, rank: int, actor: Any) -> None:
        while (rank, actor.pid) in self.loading:
            await asyncio.sleep(0)

    async def _start(self, rank: int, actor: Any) -> None:
        self.started.append((rank, actor.pid))
        while (rank, actor.pid) in self.starting:
            await asyncio.sleep(0)

    @property
    def incarnations(self) -> list[int]:
        return [keeper.incarnation for keeper in self.group.keepers]

    async def serving(self, generation: int) -> None:
        """Wait until all ranks serve in this generation."""
        await until(
            lambda: all(
                keeper.actor is not None and keeper.incarnation == generation
                for keeper in self.group.keepers
            )
        )

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        tasks = [asyncio.create_task(keeper.run()) for keeper in self.group.keepers]
        try:
            yield tasks
        finally:
            await cancel(tasks)


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def some_turns() -> None:
    """Let whoever could go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_death_of_one_rank_restarts_all_of_them_once() -> None:
    bench = Bench()
    async with bench.kept():
        await bench.serving(1)
        bench.made[5, 1].kill()
        await bench.serving(2)
        await some_turns()

        assert bench.made[4, 1].is_ended
        assert bench.incarnations == [2, 2]
        assert sorted(bench.ended) == [4, 5]


async def test_no_rank_starts_before_every_former_process_has_ended() -> None:
    bench = Bench(SlowToDie)
    async with bench.kept():
        await bench.serving(1)
        first, second = bench.made[4, 1], bench.made[5, 1]
        assert isinstance(first, SlowToDie)
        FakeActor.kill(second)

        await until(lambda: first.is_killed)
        await some_turns()
        assert set(bench.made) == {(4, 1), (5, 1)}
        assert bench.incarnations == [1, 2]

        FakeActor.kill(first)
        await bench.serving(2)


async def test_a_rank_that_ends_while_another_is_coming_up_takes_it_along() -> None:
    bench = Bench()
    bench.starting.add((4, 2))
    async with bench.kept():
        await bench.serving(1)
        bench.made[4, 1].kill()
        await until(lambda: (4, 2) in bench.made and bench.group.keepers[1].actor is not None)

        bench.made[5, 2].kill()

        await bench.serving(3)


async def test_no_rank_starts_before_all_have_loaded_in_every_generation() -> None:
    bench = Bench()
    bench.loading = {(5, 1), (4, 2)}
    async with bench.kept():
        await until(lambda: (5, 1) in bench.made)
        await some_turns()
        assert bench.started == []

        bench.loading.remove((5, 1))
        await bench.serving(1)
        bench.made[5, 1].kill()
        await until(lambda: (4, 2) in bench.made)
        await some_turns()
        assert sorted(bench.started) == [(4, 1), (5, 1)]

        bench.loading.remove((4, 2))
        await bench.serving(2)


async def test_a_rank_that_waits_for_the_others_ends_with_the_one_that_fails_to_load() -> None:
    bench = Bench()
    bench.loading = {(5, 1)}
    async with bench.kept():
        await until(lambda: (5, 1) in bench.made)
        await some_turns()
        bench.group.keepers[1].fail(OSError("no disk"))
        await bench.serving(2)

        assert bench.made[4, 1].is_ended
        assert sorted(bench.started) == [(4, 2), (5, 2)]


async def test_a_rank_is_not_made_in_a_generation_that_has_already_ended() -> None:
    bench = Bench()
    bench.errors[4, 1] = OSError("no device")
    first, second = bench.group.keepers
    tasks = [asyncio.create_task(first.run())]
    try:
        await until(lambda: first.incarnation == 2)

        tasks.append(asyncio.create_task(second.run()))

        await bench.serving(2)
        assert set(bench.made) == {(4, 2), (5, 2)}
    finally:
        await cancel(tasks)


@pytest.mark.parametrize("failing", RANKS)
async def test_a_group_that_ends_too_often_is_given_up_with_its_error(failing: int) -> None:
    bench = Bench(max_crashes=5)
    bench.errors = {(failing, n): OSError("no device") for n in range(1, 10)}
    async with bench.kept() as tasks:
        results = await asyncio.gather(*tasks, return_exceptions=True)

        for rank, result in zip(RANKS, results, strict=True):
            assert isinstance(result, EngineDead)
            assert str(result) == f"gpu{rank} ended 6 times: no device"
        assert bench.incarnations == [6, 6]


async def test_max_crashes_ends_of_the_group_are_survived_whichever_rank_ends() -> None:
    bench = Bench(max_crashes=5)
    async with bench.kept() as tasks:
        for generation in range(1, 6):
            await bench.serving(generation)
            bench.made[RANKS[generation % 2], generation].kill()
        await bench.serving(6)

        bench.made[4, 6].kill()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead, EngineDead]


@pytest.mark.parametrize("failing", RANKS)
async def test_a_typed_error_at_the_first_start_is_every_ranks(failing: int) -> None:
    bench = Bench()
    bench.errors[failing, 1] = error = ConfigError("no such memory")
    async with bench.kept() as tasks:
        assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]


async def test_both_ranks_condemned_for_one_cause_end_once() -> None:
    bench = Bench()
    async with bench.kept():
        await bench.serving(1)
        bench.group.keepers[0].condemn("its link broke", 1)
        await bench.serving(2)
        bench.group.keepers[1].condemn("rank 4 of its group was lost", 1)
        await some_turns()
        assert bench.incarnations == [2, 2]


async def test_a_rank_alone_is_restarted_alone() -> None:
    bench = Bench()
    alone = RankGroup(
        (0,), bench._make, bench._load, bench._start, on_end=bench.ended.append, supervision=QUICK
    )
    task = asyncio.create_task(alone.keepers[0].run())
    async with bench.kept():
        await bench.serving(1)
        (await alone.keepers[0].serving()).kill()
        await until(lambda: alone.keepers[0].incarnation == 2)
        await some_turns()
        assert bench.incarnations == [1, 1]
    await cancel([task])
