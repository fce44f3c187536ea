"""Who waits for the Scheduler's engine to sleep or to wake, and what the Supervisor is to do."""

import asyncio
from collections.abc import Callable

from raydix.runtime.scheduler.events import (
    EngineOrder,
    FallAsleep,
    GiveBack,
    PhaseReached,
    RanksGaveBack,
    TakeAgain,
    WakeUp,
)
from raydix.runtime.scheduler.phase import OrderOutcome


class SleepDesk:
    """Owns: the orders about sleep that the Supervisor has not fetched, and who waits for an end.

    The core never has more than one order under way.
    """

    def __init__(self, post: Callable[[EngineOrder], None]) -> None:
        """`post` gives the core an event."""
        self._post = post
        self._orders: asyncio.Queue[GiveBack | TakeAgain] = asyncio.Queue()
        self._num_posted = 0
        """How many orders to sleep or to wake the core has been given."""
        self._waiting: list[tuple[int, asyncio.Future[OrderOutcome]]] = []
        """Who waits, each with the number of orders that its own one was the last of."""

    async def fall_asleep(self, with_weights: bool) -> OrderOutcome:
        """Have the engine sleep. Returns whether it does, or somebody has woken it meanwhile."""
        return await self._reach(FallAsleep(with_weights=with_weights))

    async def wake(self) -> OrderOutcome:
        """Wake the engine. Returns whether it is awake, or was put to sleep again meanwhile."""
        return await self._reach(WakeUp())

    async def next_order(self) -> GiveBack | TakeAgain:
        """Wait until the core wants memory given back or taken again."""
        return await self._orders.get()

    def gave_back(self) -> None:
        """The latest `GiveBack` is carried out."""
        self._post(RanksGaveBack())

    def stay_asleep(self, with_weights: bool) -> None:
        """The latest `TakeAgain` cannot be carried out: what was taken goes back."""
        self._give(FallAsleep(with_weights=with_weights))

    def order(self, order: GiveBack | TakeAgain) -> None:
        """Take an order of the core."""
        self._orders.put_nowait(order)

    def reached(self, effect: PhaseReached) -> None:
        """Tell all who wait, but for those whose orders the core had not taken yet."""
        waiting, self._waiting = self._waiting, []
        for number, each in waiting:
            if number > effect.num_orders:
                self._waiting.append((number, each))
            # Whoever asked may have gone.
            elif not each.done():
                # The last outcome is that of the last order which the core had taken.
                each.set_result(effect.outcomes[number - effect.num_orders - 1])

    async def _reach(self, order: FallAsleep | WakeUp) -> OrderOutcome:
        reached: asyncio.Future[OrderOutcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._give(order), reached))
        return await reached

    def _give(self, order: FallAsleep | WakeUp) -> int:
        """Post an order; returns its number."""
        self._num_posted += 1
        self._post(order)
        return self._num_posted
