"""An engine that sleeps: the Supervisor has ranks give their memory back, and take it again."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, assert_never

from raydix.errors import CalledOff, ConfigError, EngineAsleep, EngineDead, RaydixError
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.supervision.keeper import Keeper
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import RunningActor
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.scheduler.events import GiveBack, TakeAgain
from raydix.runtime.scheduler.phase import OrderOutcome, Phase

logger = logging.getLogger(__name__)

StartRank = Callable[[int, RunningActor], Awaitable[None]]
"""Makes a rank that has loaded, or that sleeps, serve."""


class EngineSleep:
    """Owns: whether the ranks of an engine sleep, and what they have given back.

    The Scheduler decides when; its orders are carried out one after the other. No rank is started
    while they sleep: another engine may use its device.
    """

    def __init__(self, name: str, supervision: Supervision) -> None:
        self._name = name
        self._supervision = supervision
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._held_bytes = 0
        self._left_bytes = 0
        self._num_lost_pages = 0
        self._num_failed = 0
        """How often the ranks could not take their memory again."""
        self._problem = ""
        """Why they could not the last time."""

    @property
    def is_asleep(self) -> bool:
        """Whether ranks have been told to give their memory back, and not to take it again."""
        return not self._may_start.is_set()

    async def wait_awake(self) -> None:
        """Return once a rank may be started."""
        await self._may_start.wait()

    async def carry_out(
        self, scheduler: Keeper, gpus: Sequence[Keeper], start_rank: StartRank
    ) -> None:
        """Carry out the Scheduler's orders, for ever."""
        while True:
            serving = await scheduler.serving()
            # An order of a Scheduler that ends is void: the next one is told how things are.
            with contextlib.suppress(EngineDead):
                order = await serving.call("next_sleep_order")
                match order:
                    case GiveBack():
                        await self._give_back(gpus, order)
                        await serving.call("ranks_gave_back")
                    case TakeAgain():
                        if not await self._take_again(gpus, start_rank):
                            await _stay_asleep(scheduler, serving)
                    case _:
                        assert_never(order)
                continue
            await asyncio.sleep(self._supervision.first_backoff_s)

    async def fall_asleep(self, scheduler: Keeper, with_weights: bool) -> dict[str, Any]:
        """Put the engine to sleep. Returns what its ranks held before, and what they still hold.

        Tells in which phase the engine was as this came, too. Raises CalledOff if somebody wakes it
        meanwhile, or stops it.
        """
        outcome: OrderOutcome = await (await scheduler.serving()).call("fall_asleep", with_weights)
        if outcome.reached is not Phase.ASLEEP:
            why = "is being stopped" if outcome.is_closing else "was woken while it fell asleep"
            raise CalledOff(f"Engine {self._name} {why}.")
        return {
            "found": outcome.found.value,
            "held_bytes": self._held_bytes,
            "left_bytes": self._left_bytes,
            "lost_pages": self._num_lost_pages,
        }

    async def wake(self, scheduler: Keeper) -> dict[str, Any]:
        """Wake the engine. Returns how long that took, and in which phase it was as this came.

        Raises EngineAsleep if its ranks cannot have their memory back: it sleeps on.
        """
        began_s, num_failed = time.monotonic(), self._num_failed
        outcome: OrderOutcome = await (await scheduler.serving()).call("wake")
        if outcome.reached is not Phase.AWAKE:
            # What an earlier wake has met is not what has become of this one.
            has_failed = self._num_failed > num_failed
            why = self._problem if has_failed else "it was put to sleep again meanwhile"
            raise EngineAsleep(f"Engine {self._name} sleeps on: {why}")
        return {"found": outcome.found.value, "seconds": time.monotonic() - began_s}

    async def _give_back(self, gpus: Sequence[Keeper], order: GiveBack) -> None:
        """Have every rank give back its memory; one that is just being started ends."""
        self._may_start.clear()
        self._num_lost_pages = order.num_lost_pages
        if order.num_lost_pages:
            logger.warning(
                "L2 had no room for %d pages of L1, which are lost", order.num_lost_pages
            )
        given = await asyncio.gather(*(_give_back(keeper, order) for keeper in gpus))
        held = sum(each["held_bytes"] for each in given)
        left = sum(each["left_bytes"] for each in given)
        # A rank that had nothing left to give was asked before.
        self._held_bytes, self._left_bytes = max(held, self._held_bytes), left
        logger.info(
            "engine %s sleeps: its ranks hold %s of %s",
            self._name,
            format_bytes(left),
            format_bytes(self._held_bytes),
        )

    async def _take_again(self, gpus: Sequence[Keeper], start_rank: StartRank) -> bool:
        """Have every rank take its memory and serve. False: one cannot, and none does."""
        # Before any of those that have ended goes on to its next incarnation.
        starts = [
            asyncio.create_task(self._start(rank, keeper, keeper.incarnation, start_rank))
            for rank, keeper in enumerate(gpus)
        ]
        self._may_start.set()
        try:
            for start in asyncio.as_completed(starts):
                await start
        except RaydixError as error:
            self._num_failed += 1
            self._problem = str(error)
            logger.error("engine %s cannot wake: %s", self._name, error)
            self._may_start.clear()
            # Those that wait for this one would wait for ever.
            await asyncio.gather(*(keeper.end("the engine cannot wake") for keeper in gpus))
            for keeper in gpus:
                # It says of their devices that others use them, not that they cannot be kept.
                keeper.forgive()
            return False
        finally:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        return True

    async def _start(
        self, rank: int, keeper: Keeper, incarnation: int, start_rank: StartRank
    ) -> None:
        """Start one rank that sleeps as this incarnation; one that cannot ends, and is made again.

        Raises ConfigError if its device has no room, EngineAsleep if it cannot be made again.
        """
        actor = keeper.actor
        if actor is not None:
            try:
                await within(self._supervision.bring_up_timeout_s, start_rank(rank, actor))
                return
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001  whatever the device or L2's actor raises
                keeper.fail(EngineDead(f"it cannot serve again: {error!r:.300}"), incarnation)
                await keeper.gone(incarnation)
        await _start_anew(keeper, incarnation + 1)


async def _stay_asleep(scheduler: Keeper, serving: RunningActor) -> None:
    """Tell the Scheduler that has ordered a wake that the ranks sleep on."""
    try:
        await serving.call("stay_asleep", True)
    except EngineDead:
        # The next one may have been told that ranks come, for which it would wait for ever.
        await scheduler.end("the ranks sleep on")


async def _start_anew(keeper: Keeper, incarnation: int) -> None:
    """Wait until a rank serves whose last incarnation ends. Raises EngineAsleep if this one does.

    Its device may be another engine's: it would end again and again, and the engine for that.
    """
    serves = asyncio.ensure_future(keeper.serving())
    ends = asyncio.ensure_future(keeper.gone(incarnation))
    try:
        await asyncio.wait({serves, ends}, return_when=asyncio.FIRST_COMPLETED)
        if not serves.done():
            raise EngineAsleep(f"{keeper.label} cannot be started again: {keeper.last_error}")
    finally:
        serves.cancel()
        ends.cancel()
        await asyncio.gather(serves, ends, return_exceptions=True)


async def _give_back(keeper: Keeper, order: GiveBack) -> dict[str, int]:
    nothing = {"held_bytes": 0, "left_bytes": 0}
    if keeper.actor is None:
        await keeper.end("the engine sleeps")
        return nothing
    try:
        given: dict[str, int] = await keeper.actor.call("give_back", order.with_weights)
    except EngineDead:
        return nothing
    except Exception as error:  # noqa: BLE001  whatever the device or the node's memory raises
        # Its memory goes with it, and it reads its checkpoint again at the wake.
        logger.error("%s cannot give its memory back, and ends: %r", keeper.label, error)
        await keeper.end("the engine sleeps")
        return nothing
    return given
