"""What the Supervisor does about ranks that cannot have their memory back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raydix.errors import AccountingError, CalledOff, ConfigError, EngineAsleep, EngineDead
from raydix.runtime.actors.supervision.engine_sleep import EngineSleep
from raydix.runtime.actors.supervision.keeper import Keeper, at_once
from raydix.runtime.actors.supervision.spawn import RunningActor
from raydix.runtime.scheduler.events import GiveBack, TakeAgain
from raydix.runtime.scheduler.phase import OrderOutcome, Phase
from tests.runtime.actors.supervision.fake_actor import QUICK, FakeActor, until

GIVE_BACK = GiveBack(with_weights=True, num_lost_pages=0)


class Scheduler(FakeActor):
    """Gives the orders that the test puts to it."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.orders: asyncio.Queue[GiveBack | TakeAgain] = asyncio.Queue()
        self.heard: list[str] = []
        self.outcomes: asyncio.Queue[OrderOutcome] = asyncio.Queue()
        """What comes of orders to sleep or to wake."""

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.is_ended:
            raise EngineDead("it has ended")
        if method == "next_sleep_order":
            return await self.orders.get()
        if method in ("fall_asleep", "wake"):
            return await self.outcomes.get()
        self.heard.append(method)


class Rank(FakeActor):
    """Gives back whatever it is asked for, if the node has room for it."""

    has_room = True

    async def call(self, method: str, *arguments: Any) -> dict[str, int]:
        if not self.has_room:
            raise RuntimeError("can't allocate memory: you tried to allocate 80 GB")
        return {"held_bytes": 10, "left_bytes": 0}


class Bench:
    """An engine of one rank, whose starts go as the test says."""

    def __init__(self) -> None:
        self.sleep = EngineSleep("engine", QUICK)
        self.schedulers: list[Scheduler] = []
        self.told_asleep: list[bool] = []
        """What each Scheduler was told at its start."""
        self.bring_up_error: Exception | None = None
        self.start_rank: Callable[[int, RunningActor], Awaitable[None]] = self._take
        self.scheduler = self._keeper("scheduler", self._make_scheduler)
        self.gpu = self._keeper("gpu0", self._make_rank, self.sleep.wait_awake)
        self._tasks: list[asyncio.Task[None]] = []

    def _keeper(self, label: str, make: Any, may_start: Any = at_once) -> Keeper:
        return Keeper(
            label,
            make,
            self._bring_up,
            on_end=lambda *_: None,
            supervision=QUICK,
            may_start=may_start,
        )

    async def _make_scheduler(self, incarnation: int) -> Scheduler:
        self.schedulers.append(Scheduler(incarnation))
        self.told_asleep.append(self.sleep.is_asleep)
        return self.schedulers[-1]

    async def _make_rank(self, incarnation: int) -> Rank:
        return Rank(incarnation)

    async def _bring_up(self, actor: RunningActor, incarnation: int) -> None:
        if isinstance(actor, Rank) and self.bring_up_error is not None:
            await asyncio.sleep(0.01)  # to load takes a while
            raise self.bring_up_error

    async def _take(self, rank: int, actor: RunningActor) -> None:
        pass

    async def __aenter__(self) -> "Bench":
        self._tasks = [asyncio.create_task(each.run()) for each in (self.scheduler, self.gpu)]
        await asyncio.gather(self.scheduler.serving(), self.gpu.serving())
        orders = self.sleep.carry_out(
            self.scheduler, [self.gpu], lambda rank, actor: self.start_rank(rank, actor)
        )
        self._tasks.append(asyncio.create_task(orders))
        self.schedulers[0].orders.put_nowait(GIVE_BACK)
        await until(lambda: self.schedulers[0].heard == ["ranks_gave_back"])
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_no_scheduler_believes_in_a_wake_that_has_failed() -> None:
    async with Bench() as bench:

        async def fail(rank: int, actor: RunningActor) -> None:
            bench.schedulers[0].kill()
            await until(lambda: bench.scheduler.actor not in (None, bench.schedulers[0]))
            raise ConfigError("another engine has the memory")

        bench.start_rank = fail
        bench.schedulers[0].orders.put_nowait(TakeAgain())
        await until(lambda: len(bench.schedulers) == 3 and bench.scheduler.actor is not None)
        assert bench.told_asleep == [False, False, True]


async def test_a_rank_whose_weights_find_no_room_ends_and_starts_again_at_the_wake() -> None:
    async with Bench() as bench:
        first = bench.schedulers[0]
        rank = await bench.gpu.serving()
        assert isinstance(rank, Rank)
        rank.has_room = False

        first.orders.put_nowait(GIVE_BACK)
        await until(lambda: first.heard == ["ranks_gave_back"] * 2)
        assert rank.is_ended
        assert bench.gpu.actor is None

        first.orders.put_nowait(TakeAgain())
        await bench.gpu.serving()
        assert bench.gpu.incarnation == 2


async def test_a_rank_that_cannot_be_started_again_leaves_the_engine_asleep() -> None:
    async with Bench() as bench:
        first = bench.schedulers[0]
        bench.bring_up_error = OSError("another engine has the memory")
        await bench.gpu.end("killed")
        num_wakes = QUICK.max_crashes + 2

        for number in range(num_wakes):
            first.orders.put_nowait(TakeAgain())
            await until(lambda number=number: first.heard[1:] == ["stay_asleep"] * (number + 1))
            assert bench.sleep.is_asleep
        bench.bring_up_error = None
        first.orders.put_nowait(TakeAgain())
        await bench.gpu.serving()
        assert not bench.sleep.is_asleep


FAULTS = (
    EngineDead("L2's actor has ended"),
    AccountingError("pools are not where graphs would read them"),
    OSError("the device maps nothing"),
)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
async def test_a_rank_that_cannot_take_its_memory_ends_and_is_made_again(error: Exception) -> None:
    async with Bench() as bench:

        async def fail(rank: int, actor: RunningActor) -> None:
            raise error

        bench.start_rank = fail
        bench.schedulers[0].orders.put_nowait(TakeAgain())
        await until(lambda: bench.gpu.incarnation == 2 and bench.gpu.actor is not None)
        assert not bench.sleep.is_asleep
        assert bench.schedulers[0].heard == ["ranks_gave_back"]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
async def test_one_that_finds_no_room_when_it_is_made_again_leaves_the_engine_asleep(
    error: Exception,
) -> None:
    async with Bench() as bench:

        async def fail(rank: int, actor: RunningActor) -> None:
            raise error

        bench.start_rank = fail
        bench.bring_up_error = ConfigError("another engine has the memory")
        bench.schedulers[0].orders.put_nowait(TakeAgain())
        await until(lambda: bench.schedulers[0].heard[1:] == ["stay_asleep"])
        assert bench.sleep.is_asleep


async def test_wakes_that_find_no_room_do_not_end_the_engine() -> None:
    async with Bench() as bench:
        bench.bring_up_error = ConfigError("another engine has the memory")

        async def fail(rank: int, actor: RunningActor) -> None:
            raise ConfigError("another engine has the memory")

        bench.start_rank = fail
        first = bench.schedulers[0]
        for number in range(QUICK.max_crashes + 2):
            first.orders.put_nowait(TakeAgain())
            await until(lambda number=number: first.heard[1:] == ["stay_asleep"] * (number + 1))
        bench.bring_up_error = None
        first.orders.put_nowait(TakeAgain())
        await bench.gpu.serving()


STAYS = OrderOutcome(found=Phase.ASLEEP, reached=Phase.ASLEEP, is_closing=False)


async def test_a_wake_is_not_told_what_an_earlier_one_has_met() -> None:
    async with Bench() as bench:

        async def fail(rank: int, actor: RunningActor) -> None:
            raise ConfigError("another engine has the memory")

        bench.start_rank, first = fail, bench.schedulers[0]
        wake = asyncio.create_task(bench.sleep.wake(bench.scheduler))
        await asyncio.sleep(0)
        first.orders.put_nowait(TakeAgain())
        await until(lambda: "stay_asleep" in first.heard)
        first.outcomes.put_nowait(STAYS)
        with pytest.raises(EngineAsleep, match="sleeps on: another engine has the memory"):
            await wake

        first.outcomes.put_nowait(STAYS)
        with pytest.raises(EngineAsleep, match="sleeps on: it was put to sleep again meanwhile"):
            await bench.sleep.wake(bench.scheduler)


@pytest.mark.parametrize(
    ("is_closing", "why"), [(False, "was woken while it fell asleep"), (True, "is being stopped")]
)
async def test_whoever_has_an_engine_sleep_hears_why_it_does_not(
    is_closing: bool, why: str
) -> None:
    async with Bench() as bench:
        outcome = OrderOutcome(found=Phase.AWAKE, reached=Phase.AWAKE, is_closing=is_closing)
        bench.schedulers[0].outcomes.put_nowait(outcome)
        with pytest.raises(CalledOff, match=f"Engine engine {why}"):
            await bench.sleep.fall_asleep(bench.scheduler, False)


async def test_a_rank_that_hangs_in_the_wake_is_made_again() -> None:
    async with Bench() as bench:

        async def hang(rank: int, actor: RunningActor) -> None:
            await asyncio.Event().wait()

        bench.start_rank = hang
        bench.schedulers[0].orders.put_nowait(TakeAgain())
        await until(lambda: bench.gpu.incarnation == 2 and bench.gpu.actor is not None)
        assert not bench.sleep.is_asleep
