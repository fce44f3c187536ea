"""One engine of a service, from its start to its end."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.control_client import EngineAway
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.service.launcher import Launcher, StartedEngine
from raydix.runtime.actors.service.plan import EngineState, EngineView
from raydix.runtime.actors.service.rows import load_row
from raydix.runtime.actors.service.scale import EngineLoad, load_of
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.config.policies import EngineRole

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
"""The time that an engine has to tell its figures."""
_ASK_AGAIN_S = 1.0
"""The time after which an engine that could not be reached is asked again."""


class ServiceEngine:
    """Owns: what has become of one engine that the service has started."""

    def __init__(self, name: str, number: int, node: str, role: EngineRole) -> None:
        self.name = name
        self.number = number
        self.node = node
        self.role = role
        self.failure: RaydixError | None = None
        """Why it could not start."""
        self.fingerprint: str | None = None
        """The fingerprint of its model; None until it serves."""
        self._state = EngineState.STARTING
        self._control = StartControl()
        self._started: StartedEngine | None = None
        self._ending: asyncio.Task[None] | None = None
        self._serves_since_s: float | None = None

    @property
    def view(self) -> EngineView:
        """What the service goes by."""
        return EngineView(
            name=self.name,
            number=self.number,
            node=self.node,
            role=self.role,
            state=self._state,
        )

    async def live(self, launcher: Launcher, on_serving: Callable[[], None]) -> None:
        """Start it, and return once it has ended and has given everything back."""
        starting = on_thread(
            self.name, launcher.start, self.name, self.node, self.role, self._control
        )
        try:
            self._started = await asyncio.wrap_future(starting)
            self.fingerprint = (await self._started.call("client_facts"))["fingerprint"]
        except RaydixError as error:
            self.failure = error
            if self._started is not None:
                await self._end(self._started, launcher)
            return
        if self._state is EngineState.STARTING:
            self._state = EngineState.SERVING
            self._serves_since_s = time.monotonic()
            logger.info("engine %s serves", self.name)
            on_serving()
            await self._ended(self._started, launcher)
        # Whoever waits for its end learns of it before all is given back.
        await (self._ending or self._end(self._started, launcher))

    async def _ended(self, started: StartedEngine, launcher: Launcher) -> None:
        """Return once it has ended, or is about to.

        It has once its Supervisor says so, or Ray lists it no more. While nobody answers it is
        away, and asked again.
        """
        while True:
            try:
                if self._state is EngineState.AWAY:
                    # What is answered at once, as only its end is told to whoever waits for that.
                    await started.call("client_facts")
                    self._note_answer()
                await started.wait_ended()
            except RaydixError as error:
                says_so = isinstance(error, EngineDead) and not isinstance(error, EngineAway)
                if says_so or self._ending is not None:
                    level = logging.WARNING if self._ending is None else logging.INFO
                    logger.log(level, "%s", error)
                    return
                self._note_away(error)

            if not await self._is_listed(launcher):
                logger.warning(
                    "engine %s has ended: Ray lists it no more, or not its node", self.name
                )
                return
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _is_listed(self, launcher: Launcher) -> bool:
        """Whether Ray takes the engine and its node for living; it does until it says otherwise."""
        try:
            nodes = await asyncio.to_thread(launcher.nodes)
            engines = await asyncio.to_thread(launcher.engines)
        except RaydixError:
            # The service asks the same all the time, and tells that nobody answers.
            return True
        return self.node in nodes and self.name in engines

    def _note_away(self, error: RaydixError) -> None:
        if self._state is EngineState.SERVING:
            self._state = EngineState.AWAY
            logger.warning(
                "engine %s is away. It is asked again until it answers, or Ray lists it no more: "
                "%s",
                self.name,
                error,
            )

    def _note_answer(self) -> None:
        if self._state is EngineState.AWAY:
            self._state = EngineState.SERVING
            logger.info("engine %s answers again", self.name)

    async def load(self) -> EngineLoad | None:
        """What it has to do; None unless it serves, and says so soon."""
        is_serving = self._state is EngineState.SERVING
        figures = ((await self._stats()) or {}).get("scheduler") if is_serving else None
        return None if figures is None else load_of(figures)

    async def row(self, now_s: float) -> dict[str, Any]:
        """What the table of the service says of it, as plain values."""
        since_s = self._serves_since_s
        return {
            "up_s": None if since_s is None else now_s - since_s,
            "fingerprint": self.fingerprint,
            **load_row(await self._stats()),
        }

    async def _stats(self) -> dict[str, Any] | None:
        """The figures by actor; None unless it runs, and says so soon."""
        if self._started is None:
            return None
        try:
            async with asyncio.timeout(_ANSWER_S):
                stats: dict[str, Any] = await self._started.call("stats")
        except (RaydixError, TimeoutError):
            return None
        return stats

    def drain(self, launcher: Launcher) -> None:
        """Let it take nothing new and end, or call its start off."""
        self._control.call_off()
        self._state = EngineState.DRAINING
        if self._started is not None and self._ending is None:
            ending = self._end(self._started, launcher)
            self._ending = asyncio.create_task(ending, name=f"end-{self.name}")

    async def _end(self, started: StartedEngine, launcher: Launcher) -> None:
        try:
            await self._drained(started, launcher)
            # Ray's head may take its time.
            await asyncio.to_thread(started.release)
        except Exception:
            # Whatever Ray raises: nothing is left to save here, and other engines are to go on.
            logger.exception("engine %s has not ended well", self.name)

    async def _drained(self, started: StartedEngine, launcher: Launcher) -> None:
        """Return once it has drained and ended, or has been away for as long as that may take.

        A link that is lost says nothing of it, whether it has heard that it is to end or not.
        """
        patience_s, away_since_s = launcher.drain_s, math.inf
        while True:
            try:
                await started.call("shutdown")
                return
            except EngineAway as error:
                if not await self._is_listed(launcher):
                    return
                now_s = time.monotonic()
                if away_since_s == math.inf:
                    away_since_s = now_s
                    logger.warning(
                        "engine %s is to end, and is away. It is asked again for %g s, unless Ray "
                        "lists it no more: %s",
                        self.name,
                        patience_s,
                        error,
                    )
                if now_s - away_since_s > patience_s:
                    logger.warning("engine %s was away for so long that Ray ends it", self.name)
                    return
            except EngineDead as error:
                # Somebody else has stopped it.
                logger.info("%s", error)
                return
            await asyncio.sleep(_ASK_AGAIN_S)
