"""Who is told that an engine sleeps or is awake: those alone whose orders were taken by then."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from raydix.runtime.actors.sleep_desk import SleepDesk
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.events import (
    EngineOrder,
    GiveBack,
    PhaseReached,
    TakeAgain,
)
from raydix.runtime.scheduler.phase import OrderOutcome, Phase
from tests.runtime.scheduler.core_driver import BASE


class SlowTurns:
    """Gives a core what a desk posts, one event each time that it is told to."""

    def __init__(self) -> None:
        self.core = SchedulerCore(BASE, Phase.ASLEEP)
        self.posted: list[EngineOrder] = []
        self.desk = SleepDesk(self.posted.append)

    def turn(self) -> None:
        for effect in self.core.handle(self.posted.pop(0), 0.0):
            match effect:
                case PhaseReached():
                    self.desk.reached(effect)
                case GiveBack() | TakeAgain():
                    self.desk.order(effect)


async def _asked(order: Coroutine[Any, Any, OrderOutcome]) -> asyncio.Task[OrderOutcome]:
    """An order that has been posted."""
    task = asyncio.create_task(order)
    await asyncio.sleep(0)
    return task


def test_an_order_that_the_core_has_not_taken_yet_is_not_told_what_came_of_earlier_ones() -> None:
    async def scenario() -> None:
        turns = SlowTurns()
        asleep = await _asked(turns.desk.fall_asleep(False))
        with_weights = await _asked(turns.desk.fall_asleep(True))
        turns.turn()
        assert (await asleep).reached is Phase.ASLEEP
        await asyncio.sleep(0)
        assert not with_weights.done()  # its order goes to the ranks next

        turns.turn()
        turns.desk.gave_back()
        turns.turn()
        assert (await with_weights).reached is Phase.ASLEEP

    asyncio.run(scenario())


def test_a_wake_that_cannot_be_carried_out_is_told_to_whoever_asked_before() -> None:
    async def scenario() -> None:
        turns = SlowTurns()
        wake = await _asked(turns.desk.wake())
        turns.turn()
        turns.desk.stay_asleep(with_weights=True)
        again = await _asked(turns.desk.fall_asleep(True))
        turns.turn()
        turns.desk.gave_back()
        turns.turn()
        turns.turn()
        assert (await wake).reached is Phase.ASLEEP
        assert (await again).reached is Phase.ASLEEP

    asyncio.run(scenario())


def test_each_of_many_orders_is_told_in_which_phase_it_has_found_the_engine() -> None:
    async def scenario() -> None:
        turns = SlowTurns()
        first, second = await _asked(turns.desk.wake()), await _asked(turns.desk.wake())
        turns.turn()
        turns.turn()
        asleep = await _asked(turns.desk.fall_asleep(False))
        turns.turn()
        turns.desk.gave_back()
        turns.turn()
        outcomes = [await each for each in (first, second, asleep)]
        assert [each.found for each in outcomes] == [Phase.ASLEEP, Phase.WAKING, Phase.WAKING]
        assert {each.reached for each in outcomes} == {Phase.ASLEEP}
        late = await _asked(turns.desk.fall_asleep(False))
        turns.turn()
        assert (await late).found is Phase.ASLEEP

    asyncio.run(scenario())
