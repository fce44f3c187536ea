"""A service: engines of one model on several nodes, started, replaced and ended as one."""

import asyncio
import contextlib
import logging
import math
import time
from typing import Any

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.actors.bootstrap.placement import NoRoom
from raydix.runtime.actors.service.engine import ServiceEngine
from raydix.runtime.actors.service.former import FormerService
from raydix.runtime.actors.service.launcher import Launcher
from raydix.runtime.actors.service.names import engine_name, next_number
from raydix.runtime.actors.service.plan import (
    Drain,
    EngineState,
    GiveUp,
    Start,
    Waiting,
    next_steps,
    num_kept,
    waiting_engines,
)
from raydix.runtime.actors.service.rests import Rests
from raydix.runtime.actors.service.scale import Scaler
from raydix.version import VERSION

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
"""The time after which nodes are looked at again."""
_FOUND_S = 5.0
"""The time in which clients find an engine, which look for new ones every second."""
_GIVING_WAY_S = 10.0
"""The time after which a later version that says nothing more is taken for dead."""


class EngineService:
    """Owns: which engines of a service this process has started, and which of them are to end."""

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        scaler: Scaler,
        former: FormerService | None = None,
    ) -> None:
        """`former`: the version of the service before this one."""
        self.name = name
        self._launcher = launcher
        self._scaler = scaler
        if former is not None:
            scaler.begin_with(former.num_engines)
        self._former = former
        self._engines: dict[str, ServiceEngine] = {}
        self._lives: dict[asyncio.Task[None], ServiceEngine] = {}
        self._rests = Rests()
        self._has_served = False
        self._lacks_room = False
        self._fills_room_until_s = -math.inf
        """The time until which an engine for which room was made has not been found by clients."""
        self._waiting: list[Waiting] = []
        """The engines that are wanted and do not start yet."""
        self._latest_number = 0
        self._served_since_s: dict[str, float] = {}
        """Since when each engine serves."""
        self._kept: tuple[int, float] | None = None
        """How many engines a later version leaves to this one, and until when that counts."""
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._serves = asyncio.Event()
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Keep as many engines as are wanted, until `stop` or until a later version has taken over.

        Raises the error of the first start, if that is one of the configuration or of the model.
        """
        try:
            while not self._has_ended:
                await self._bring_about(time.monotonic())
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                self._bury(time.monotonic())
        finally:
            await self._end_all()
            self._is_over.set()

    async def serving(self) -> None:
        """Return once an engine of this version serves."""
        await self._serves.wait()

    @property
    def is_over(self) -> bool:
        """Whether it has run, and no engine of it is left."""
        return self._is_over.is_set()

    async def ended(self) -> None:
        """Return once no engine is left, for whatever reason."""
        await self._is_over.wait()

    def stop(self) -> None:
        """Drain all engines; `run` returns once they have ended. May be called twice."""
        self._is_stopping = True
        self._changed.set()

    def give_way(self, num_engines: int) -> dict[str, Any]:
        """Have no more than so many engines, as a later version has others; end without any.

        It counts for a while: a later version that dies leaves the service as it was.
        """
        self._kept = (num_engines, time.monotonic() + _GIVING_WAY_S)
        self._changed.set()
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """How many engines are wanted, and what each does, as plain values."""
        views = sorted((each.view for each in self._engines.values()), key=lambda one: one.number)
        return {
            "service": self.name,
            "wanted": self._scaler.num_wanted,
            "is_giving_way": self._kept is not None,
            "engines": [
                {"name": each.name, "node": each.node, "state": each.state.value} for each in views
            ],
            "waiting": [
                {"engines": each.num_engines, "for": each.reason} for each in self._waiting
            ],
        }

    async def look(self) -> dict[str, Any]:
        """The same, with what each engine tells of itself: its load, its caches, since when."""
        described = self.describe()
        engines, now_s = dict(self._engines), time.monotonic()
        addresses = await asyncio.to_thread(self._launcher.addresses)
        rows = await asyncio.gather(*(each.row(now_s) for each in engines.values()))
        by_name = dict(zip(engines, rows, strict=True))
        for each in described["engines"]:
            each |= {"address": addresses.get(each["node"]), "version": VERSION}
            each |= by_name[each["name"]]
        return described

    @property
    def _has_ended(self) -> bool:
        return (self._is_stopping or self.has_given_way) and not self._lives

    @property
    def has_former(self) -> bool:
        """Whether an earlier version is still there."""
        return self._former is not None and self._former.is_there

    @property
    def has_given_way(self) -> bool:
        """Whether a later version has taken over."""
        return self._kept is not None and self._kept[0] == 0

    @property
    def _num_serving(self) -> int:
        views = [each.view for each in self._engines.values()]
        return sum(each.state is EngineState.SERVING for each in views)

    def _num_followers(self, now_s: float) -> int:
        """How many engines serve that those of the former version may leave their place to.

        An engine counts once whoever routes has found it: what is sent to the former until then is
        refused where no other is known, or none of the same version.
        """
        return sum(
            each.view.state is EngineState.SERVING
            and now_s - self._served_since_s.get(each.name, now_s) >= _FOUND_S
            for each in self._engines.values()
        )

    def _num_to_have(self, now_s: float) -> int:
        if self._kept is not None and now_s > self._kept[1]:
            logger.warning("the later version of %s is gone; this one goes on", self.name)
            self._kept = None
        if self._is_stopping:
            return 0
        wanted = self._scaler.num_wanted
        return wanted if self._kept is None else min(self._kept[0], wanted)

    async def _scale(self, now_s: float) -> None:
        """Change how many engines are wanted by what they have to do."""
        engines = list(self._engines.values())
        told = await asyncio.gather(*(each.load() for each in engines))
        loads = {
            each.name: load for each, load in zip(engines, told, strict=True) if load is not None
        }
        before = self._scaler.num_wanted
        load = self._scaler.note(loads, self._num_serving, now_s)
        if self._scaler.num_wanted != before:
            logger.info(
                "service %s is to have %d engines, not %d: %d requests wait, for %.1f s, %d run",
                self.name,
                self._scaler.num_wanted,
                before,
                load.num_waiting,
                load.wait_s,
                load.num_running,
            )

    async def _bring_about(self, now_s: float) -> None:
        """Take the steps that are due."""
        if not self._scaler.is_fixed and self._kept is None:
            await self._scale(now_s)
        views = [each.view for each in self._engines.values()]
        num_serving = self._num_followers(now_s)
        # Else the former would start another one in the place of that which has made room.
        lacks_room = self._lacks_room or now_s < self._fills_room_until_s
        if self._former is not None and self.has_former and num_serving + lacks_room > 0:
            kept = num_kept(
                self._former.num_engines,
                num_serving=num_serving,
                num_wanted=self._scaler.num_wanted,
                lacks_room=lacks_room,
            )
            await self._former.keep(kept)

        nodes = await asyncio.to_thread(self._launcher.nodes)
        resting, num_wanted = self._rests.resting(now_s), self._num_to_have(now_s)
        steps = next_steps(
            views,
            nodes=nodes,
            resting=resting,
            num_former={} if self._former is None else self._former.num_by_node(),
            num_wanted=num_wanted,
            # Beside an earlier version they come one after the other.
            max_starting=1 if self.has_former else len(nodes),
        )
        for step in steps:
            match step:
                case Start(node=node):
                    await self._start(node)
                case Drain(name=name) | GiveUp(name=name):
                    self._engines[name].drain()
        views = [each.view for each in self._engines.values()]
        self._note_waiting(
            waiting_engines(views, nodes=nodes, resting=resting, num_wanted=num_wanted)
        )

    def _note_waiting(self, waiting: list[Waiting]) -> None:
        """Say which engines wait, and for what, whenever that has changed."""
        if waiting == self._waiting:
            return
        self._waiting = waiting
        for each in waiting:
            logger.info(
                "service %s wants %d engines; %d wait for %s",
                self.name,
                self._scaler.num_wanted,
                each.num_engines,
                each.reason,
            )

    async def _start(self, node: str) -> None:
        there = list(await asyncio.to_thread(self._launcher.engines))
        there += [] if self._former is None else self._former.engines
        self._latest_number = max(self._latest_number + 1, next_number(self.name, there))
        engine = ServiceEngine(
            engine_name(self.name, self._latest_number), self._latest_number, node
        )
        self._engines[engine.name] = engine
        logger.info("engine %s starts on node %s", engine.name, node)
        life = asyncio.create_task(
            engine.live(self._launcher, lambda: self._note_serving(engine)), name=engine.name
        )
        self._lives[life] = engine
        life.add_done_callback(lambda _: self._changed.set())

    def _note_serving(self, engine: ServiceEngine) -> None:
        now_s = time.monotonic()
        if self._lacks_room:
            self._fills_room_until_s = now_s + _FOUND_S
        self._has_served, self._lacks_room = True, False
        self._served_since_s[engine.name] = now_s
        self._rests.note_success(engine.node)
        self._changed.set()
        self._serves.set()

    def _bury(self, now_s: float) -> None:
        """Forget the engines that have ended. Raises what can only be the user's to mend."""
        for life in [each for each in self._lives if each.done()]:
            engine = self._lives.pop(life)
            life.result()
            del self._engines[engine.name]
            self._served_since_s.pop(engine.name, None)
            if engine.failure is None or engine.view.state is EngineState.DRAINING:
                continue
            self._lacks_room = isinstance(engine.failure, NoRoom)
            is_users = isinstance(engine.failure, ConfigError | CheckpointError)
            if is_users and not self._lacks_room and not self._has_served:
                raise engine.failure
            logger.warning("engine %s does not start: %s", engine.name, engine.failure)
            self._rests.note_failure(engine.node, str(engine.failure), now_s)

    async def _end_all(self) -> None:
        for engine in self._engines.values():
            engine.drain()
        await asyncio.gather(*self._lives, return_exceptions=True)
