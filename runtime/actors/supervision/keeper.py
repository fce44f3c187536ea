"""Keeps one actor of an engine alive: starts it, brings it up, watches it, restarts it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.supervision.restarts import CrashHistory, Supervision
from raydix.runtime.actors.supervision.spawn import RunningActor

logger = logging.getLogger(__name__)

T = TypeVar("T")

Make = Callable[[int], Awaitable[RunningActor]]
"""Starts the process of the given incarnation. If it fails or is cancelled, no process is left."""
BringUp = Callable[[RunningActor, int], Awaitable[None]]
"""Makes that incarnation serve."""
OnEnd = Callable[[int, Exception | None], None]
"""Hears that an incarnation ends, and why; None: the actor is not kept any more. Its process may
still live.
"""


MayStart = Callable[[], Awaitable[None]]
"""Returns once the next incarnation may be started."""


async def at_once() -> None:
    """Let incarnations start whenever they are due."""


class AskedToEnd(EngineDead):
    """An actor ends for the sake of another one: that is no crash of its own."""


class Keeper:
    """Owns: one actor across its incarnations, which count from 1."""

    def __init__(
        self,
        label: str,
        make: Make,
        bring_up: BringUp,
        *,
        on_end: OnEnd,
        supervision: Supervision,
        may_start: MayStart = at_once,
    ) -> None:
        """`on_end`: see `OnEnd`; `may_start`: see `MayStart`."""
        self.label = label
        self.incarnation = 0
        self.actor: RunningActor | None = None
        """The incarnation that serves; None while there is none."""
        self.last_error: Exception | None = None
        """Why the last incarnation ended."""

        self._make = make
        self._bring_up = bring_up
        self._on_end = on_end
        self._may_start = may_start
        self._supervision = supervision
        self._history = CrashHistory(supervision)

        self._serving = asyncio.Event()
        self._made: RunningActor | None = None
        """The current incarnation, from its start on."""
        self._condemned: asyncio.Future[Exception] | None = None
        self._num_gone = 0
        """Incarnations whose processes have ended."""
        self._next_gone = asyncio.Event()
        self._has_served = False
        self._down_since_s = time.monotonic()
        """When its first start began, or its last incarnation ended."""
        self._over: RaydixError | None = None
        """Why the actor is not kept any more."""

    @property
    def num_restarts(self) -> int:
        """How often it had to be restarted."""
        return max(self.incarnation - 1, 0)

    async def serving(self) -> RunningActor:
        """The actor, once it serves. Raises the reason if it is not kept any more."""
        while self.actor is None:
            if self._over is not None:
                raise self._over
            await self._serving.wait()
        return self.actor

    def condemn(self, reason: str, incarnation: int | None = None) -> None:
        """End the current incarnation, if it is still the one meant; the next one follows."""
        self.fail(EngineDead(reason), incarnation)

    def fail(self, error: Exception, incarnation: int | None = None) -> None:
        """Condemn an incarnation, which ends as if this error were its own."""
        if incarnation not in (None, self.incarnation):
            return
        if self._condemned is not None and not self._condemned.done():
            self._condemned.set_result(error)

    async def end(self, reason: str) -> None:
        """End the current incarnation, if any, and wait until its process has ended.

        It is not counted among those after which the actor is kept no more.
        """
        if self._condemned is not None:
            self.fail(AskedToEnd(reason))
            await self.gone(self.incarnation)

    def forgive(self) -> None:
        """Count none of the ends so far among those after which the actor is kept no more."""
        self._history = CrashHistory(self._supervision)

    async def gone(self, incarnation: int) -> None:
        """Return once the process of that incarnation, which may be yet to start, has ended."""
        while self._num_gone < incarnation:
            await self._next_gone.wait()

    async def run(self) -> None:
        """Keep the actor until cancelled.

        Raises EngineDead if it ends too often, and its own error if it never served.
        """
        try:
            await self._keep()
        except RaydixError as error:
            self._over = error
            raise
        finally:
            if self._over is None:
                self._over = EngineDead(f"{self.label} is not kept any more")
            # Whoever waits for it to serve would wait for ever.
            self._serving.set()

    async def run_while_it_lasts(self) -> None:
        """Keep an actor without which the engine goes on, as it does once it ends too often.

        Raises ConfigError if it cannot even start.
        """
        try:
            await self.run()
        except EngineDead as error:
            logger.error("%s is kept no more; the engine goes on without: %s", self.label, error)
            await asyncio.Event().wait()

    async def _keep(self) -> None:
        while True:
            await self._may_start()
            self.incarnation += 1
            error = self.last_error = await self._live()
            was_asked = isinstance(error, AskedToEnd)
            if not (self._has_served or was_asked) and isinstance(error, RaydixError):
                raise error

            delay_s = 0.0 if was_asked else self._history.record(time.monotonic())
            if delay_s is None:
                raise EngineDead(
                    f"{self.label} ended {self._supervision.max_crashes + 1} times: {error}"
                ) from error
            logger.error(
                "%s, incarnation %d, ended (%s); it is restarted",
                self.label,
                self.incarnation,
                error,
            )
            await asyncio.sleep(delay_s)

    async def _live(self) -> Exception:
        """Live through one incarnation, from start to end of its process. Returns why it ended."""
        self._condemned = asyncio.get_running_loop().create_future()
        self._made = None
        bring_up_s = self._supervision.bring_up_timeout_s
        error: Exception | None = None

        try:
            actor = await within(bring_up_s, self._unless_ended(self._start()))
            await within(
                bring_up_s, self._unless_ended(self._bring_up(actor, self.incarnation), actor)
            )
            self.actor = actor
            self._has_served = True
            self._serving.set()
            self._tell_serving()

            await self._unless_ended(self._beat(actor), actor)
            raise AssertionError("unreachable: the heartbeat never ends by itself")
        except Exception as caught:  # noqa: BLE001  whatever the cluster or the actor raises
            error = caught
        finally:
            self._down_since_s = time.monotonic()
            self.actor = None
            self._serving.clear()
            try:
                self._on_end(self.incarnation, error)
                if self._made is not None:
                    await self._end(self._made)
            finally:
                self._condemned = None
                self._note_gone()
        assert error is not None, "only a cancelled one has none"
        return error

    def _tell_serving(self) -> None:
        down_s = time.monotonic() - self._down_since_s
        if self.incarnation == 1:
            logger.info("%s serves, %.1f s after the start", self.label, down_s)
        else:
            logger.info(
                "%s serves again as incarnation %d, %.1f s after the last one ended",
                self.label,
                self.incarnation,
                down_s,
            )

    def _note_gone(self) -> None:
        self._num_gone = self.incarnation
        self._next_gone.set()
        # Those who waited were woken; who comes now waits for the next one.
        self._next_gone = asyncio.Event()

    async def _start(self) -> RunningActor:
        # Noted here, because whoever waits for this may be cancelled just when it is done.
        self._made = await self._make(self.incarnation)
        return self._made

    async def _unless_ended(self, work: Awaitable[T], actor: RunningActor | None = None) -> T:
        """Do `work`. Raises EngineDead if the incarnation is condemned or ends before that."""
        assert self._condemned is not None, "an incarnation lives"
        doing = asyncio.ensure_future(work)
        ended = None if actor is None else asyncio.ensure_future(actor.wait_ended())
        tasks: list[asyncio.Future[Any]] = [doing, *([] if ended is None else [ended])]

        try:
            await asyncio.wait([*tasks, self._condemned], return_when=asyncio.FIRST_COMPLETED)
            if self._condemned.done():
                raise self._condemned.result()
            if doing.done():
                return doing.result()
            raise EngineDead(f"the process of {self.label} ended")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self, actor: RunningActor) -> None:
        """Ask the actor for a sign of life, again and again. Raises EngineDead without one.

        One that was merely slow is lost wrongly once: its next incarnation is asked anew.
        """
        deadline_s = self._supervision.heartbeat_deadline_s
        while True:
            try:
                await within(deadline_s, actor.ping())
            except TimeoutError:
                # Also one that others keep, too: to them it is as silent.
                actor.kill()
                raise EngineDead(f"its event loop did not answer for {deadline_s} s") from None
            await asyncio.sleep(self._supervision.heartbeat_interval_s)

    async def _end(self, actor: RunningActor) -> None:
        actor.release()
        try:
            await within(self._supervision.exit_timeout_s, actor.wait_ended())
        except TimeoutError:
            logger.error("%s, process %d, does not end after SIGKILL", self.label, actor.pid)
