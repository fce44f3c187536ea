"""A GPU actor that repeats the plan that stands, with a model whose steps the test lets go."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.gpu_model import (
    GpuModel,
    HostTimer,
    LoadedGpuModel,
    RankPlace,
    StepTimer,
)
from raydix.runtime.actors.links.link import BlockingLink, LinkClosed
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan, StepResult, StepsLeftOut
from raydix.runtime.testing.links import InProcessLink, in_process_blocking_pair
from raydix.runtime.testing.sleeping_runner import (
    SleepingOutput,
    SleepingRunner,
    build_sleeping_model,
)
from raydix.runtime.tiers.transfers import WaitLayer
from tests.runtime.actors.gpu_rank import CONFIG, GPU, SCHEDULER, WAIT_S, receive, rows


class GatedRunner:
    """Begins a step as soon as it may, and ends the step of `held` once it is let go."""

    def __init__(self, held: int) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.has_replaced = threading.Event()
        """Set with the first step that is no repetition of the one before it."""
        self.starts: list[tuple[int, list[int]]] = []
        """The steps that were made, and where their rows begin."""
        self._held = held
        self._tokens = SleepingRunner(0.0)

    def apply(self, plan: StepPlan) -> None:
        """Nothing to do."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        if self.starts and plan.step != self.starts[-1][0] + 1:
            self.has_replaced.set()
        self.starts.append((plan.step, plan.row_starts.tolist()))
        if plan.step == self._held:
            self.has_begun.set()
            assert self.may_end.wait(WAIT_S)
        return self._tokens.execute(plan, wait_layer)


class RepeatingRank:
    """A GPU actor, and the Schedulers that it finds one after the other."""

    def __init__(self, held: int, make_timer: Callable[[], StepTimer] = HostTimer) -> None:
        self.runner = GatedRunner(held)
        self._make_timer = make_timer
        self.actor = GpuActor(
            config=CONFIG, name="t", rank=0, incarnation=1, build_model=self._build, on_fatal=int
        )
        self._blocking: list[BlockingLink] = []
        self._dialled = threading.Semaphore(0)

    def _build(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loaded = build_sleeping_model(config, place, step_s=0.0)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            model = loaded.prepare(num_pages)
            return replace(model, runner=self.runner, make_timer=self._make_timer)

        return replace(loaded, prepare=prepare)

    async def start(self) -> None:
        """Serve whoever is there."""
        await self.actor.prepare((await self.actor.load()).num_pages)
        self.actor.serve(self._dial)

    def new_scheduler(self) -> InProcessLink:
        """A Scheduler that the actor finds when it next looks for one."""
        link, blocking = in_process_blocking_pair(SCHEDULER, GPU)
        self._blocking.append(blocking)
        self._dialled.release()
        return link

    def _dial(self, stop: threading.Event) -> BlockingLink:
        if not self._dialled.acquire(timeout=0.01):
            raise LinkClosed("no Scheduler yet")
        return self._blocking.pop(0)

    async def wait_held(self) -> None:
        """Return once the rank is in the step that is held."""
        assert await asyncio.to_thread(self.runner.has_begun.wait, WAIT_S)


@pytest.fixture
async def rank() -> AsyncIterator[RepeatingRank]:
    made = RepeatingRank(held=3)
    await made.start()
    yield made
    made.runner.may_end.set()
    await made.actor.shutdown()


async def test_a_rank_repeats_a_plan_to_its_end_and_goes_on_with_the_next_one(
    rank: RepeatingRank,
) -> None:
    rank.runner.may_end.set()
    link = rank.new_scheduler()

    link.send(rows(1, [0, 2], row_repeats=int32_array([3, 1])))
    results = [await receive(link, StepResult) for _ in range(4)]
    link.send(rows(5, [0]))
    results.append(await receive(link, StepResult))

    assert [result.step for result in results] == [1, 2, 3, 4, 5]
    assert [len(result.token_ids) for result in results] == [2, 2, 1, 1, 1]
    assert rank.runner.starts == [(1, [0, 20]), (2, [1, 21]), (3, [2]), (4, [3]), (5, [0])]


async def test_a_plan_that_comes_takes_effect_with_the_next_step(rank: RepeatingRank) -> None:
    link = rank.new_scheduler()
    link.send(rows(1, [1], row_repeats=int32_array([7])))
    await rank.wait_held()

    link.send(rows(9, [1], row_starts=int32_array([18]), row_write_starts=int32_array([18])))
    rank.runner.may_end.set()

    assert [(await receive(link, StepResult)).step for _ in range(3)] == [1, 2, 3]
    assert await receive(link, StepsLeftOut) == StepsLeftOut(rank=0, step=4, num_steps=5)
    assert (await receive(link, StepResult)).step == 9
    assert rank.runner.starts[-1] == (9, [13])


async def test_nothing_is_repeated_for_a_scheduler_that_is_gone(rank: RepeatingRank) -> None:
    first = rank.new_scheduler()
    first.send(rows(1, [0], row_repeats=int32_array([7])))
    await rank.wait_held()

    first.close()
    rank.runner.may_end.set()
    second = rank.new_scheduler()
    second.send(rows(1, [3]))

    assert (await receive(second, StepResult)).step == 1
    assert rank.runner.starts == [(1, [0]), (2, [1]), (3, [2]), (1, [30])]


class HeldTimer(HostTimer):
    """Steps of a device that does not get on until it is let go."""

    may_end = threading.Event()

    def wait_s(self) -> float:
        assert self.may_end.wait(WAIT_S)
        return super().wait_s()


async def test_a_plan_that_comes_is_enqueued_while_the_device_is_in_the_step_before() -> None:
    """Its loads begin then, and not when that step has ended."""
    rank = RepeatingRank(held=2, make_timer=HeldTimer)
    await rank.start()
    link = rank.new_scheduler()
    link.send(rows(1, [1], row_repeats=int32_array([7])))
    await rank.wait_held()

    # One step runs on the device and one is queued behind it: no further one is enqueued.
    rank.runner.may_end.set()
    link.send(rows(9, [1], row_starts=int32_array([18]), row_write_starts=int32_array([18])))
    has_begun = await asyncio.to_thread(rank.runner.has_replaced.wait, WAIT_S / 4)

    HeldTimer.may_end.set()
    await rank.actor.shutdown()
    assert has_begun
    assert [step for step, _ in rank.runner.starts] == [1, 2, 9]
