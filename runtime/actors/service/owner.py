"""A service: engines of one model on several nodes, started, replaced and ended as one."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raydix.errors import CheckpointError, ConfigError, EngineDead
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
    waiting_engines,
)
from raydix.runtime.actors.service.rests import Rests
from raydix.runtime.actors.service.roles import RoleCounts, ServiceRoles, kept_roles
from raydix.runtime.actors.service.scale import Scaler
from raydix.runtime.config.policies import EngineRole
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
        roles: ServiceRoles,
        former: FormerService | None = None,
    ) -> None:
        """`scaler`: says how many have the usual role. `former`: the version before this one."""
        self.name = name
        self._launcher = launcher
        self._scaler = scaler
        self._roles = roles
        if former is not None:
            scaler.begin_with(sum(former.roles.values()) - roles.num_prefill)
        self._former = former
        self._engines: dict[str, ServiceEngine] = {}
        self._lives: dict[asyncio.Task[None], ServiceEngine] = {}
        self._rests = Rests()
        self._has_served = False
        self._lacks_room: EngineRole | None = None
        """The role of an engine that has found no room beside others."""
        self._fills_room: tuple[EngineRole, float] | None = None
        """The role of an engine for which room was made, until when clients have not found it."""
        self._waiting: list[Waiting] = []
        """The engines that are wanted and do not start yet."""
        self._latest_number = 0
        self._served_since_s: dict[str, float] = {}
        """Since when each engine serves."""
        self._kept: tuple[RoleCounts, float] | None = None
        """The engines that a later version leaves to this one, and until when that counts."""
        self._is_answered = True
        """Whether the last look at nodes and engines was answered."""
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
                await self._look_around(time.monotonic())
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

    def give_way(self, kept: Mapping[str, int]) -> dict[str, Any]:
        """Have no more engines of each role than these, as a later version has others.

        It ends without any. It counts for a while: a later version that dies leaves the service as
        it was.
        """
        roles = {EngineRole(role): number for role, number in kept.items()}
        self._kept = (roles, time.monotonic() + _GIVING_WAY_S)
        self._changed.set()
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """How many engines are wanted, and what each does, as plain values."""
        views = sorted((each.view for each in self._engines.values()), key=lambda one: one.number)
        return {
            "service": self.name,
            "wanted": sum(self._wanted.values()),
            "is_giving_way": self._kept is not None,
            "engines": [
                {
                    "name": each.name,
                    "node": each.node,
                    "role": each.role.value,
                    "state": each.state.value,
                }
                for each in views
            ],
            "waiting": [
                {"engines": each.num_engines, "for": each.reason} for each in self._waiting
            ],
        }

    async def look(self) -> dict[str, Any]:
        """The same, with what each engine tells of itself: its load, its caches, since when."""
        described = self.describe()
        engines, now_s = dict(self._engines), time.monotonic()
        addresses: Mapping[str, str] = {}
        # The table is of most use while Ray does not answer.
        with contextlib.suppress(EngineDead):
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
        return self._kept is not None and not any(self._kept[0].values())

    @property
    def _wanted(self) -> RoleCounts:
        """The engines that are wanted while no later version takes over."""
        return self._roles.wanted(self._scaler.num_wanted)

    def _followers(self, nodes: Sequence[str], now_s: float) -> RoleCounts:
        """The engines that serve and that those of the former version may leave their place to.

        An engine counts once whoever routes has found it: what is sent to the former until then is
        refused where no other is known, or none of the same version.
        """
        return Counter(
            each.role
            for each in self._engines.values()
            if each.view.state is EngineState.SERVING
            and each.node in nodes
            and now_s - self._served_since_s.get(each.name, now_s) >= _FOUND_S
        )

    def _to_have(self, now_s: float) -> RoleCounts:
        if self._kept is not None and now_s > self._kept[1]:
            logger.warning("the later version of %s is gone; this one goes on", self.name)
            self._kept = None
        if self._is_stopping:
            return {}
        wanted = self._wanted
        return wanted if self._kept is None else Counter(self._kept[0]) & Counter(wanted)

    async def _scale(self, now_s: float) -> None:
        """Change how many engines are wanted by what those of the usual role have to do.

        Where too few compute prompts for them, whole requests come to them, too.
        """
        engines = [each for each in self._engines.values() if each.role is self._roles.usual]
        told = await asyncio.gather(*(each.load() for each in engines))
        loads = {
            each.name: load for each, load in zip(engines, told, strict=True) if load is not None
        }
        before = self._scaler.num_wanted
        # One that is away may be busy, as one that says nothing may.
        serving = (EngineState.SERVING, EngineState.AWAY)
        num_serving = sum(each.view.state in serving for each in engines)
        load = self._scaler.note(loads, num_serving, now_s)
        if self._scaler.num_wanted != before:
            num_prefill = self._roles.num_prefill
            logger.info(
                "service %s is to have %d engines, not %d: %d requests wait, for %.1f s, %d run",
                self.name,
                self._scaler.num_wanted + num_prefill,
                before + num_prefill,
                load.num_waiting,
                load.wait_s,
                load.num_running,
            )

    async def _look_around(self, now_s: float) -> None:
        """Take the steps that are due, as far as nodes and engines can be asked for now."""
        try:
            await self._bring_about(now_s)
        except EngineDead as error:
            if self._is_answered:
                logger.warning("service %s goes on as it is, and looks again: %s", self.name, error)
            self._is_answered = False
            if self._is_stopping or self.has_given_way:
                self._drain_all()
            return
        if not self._is_answered:
            logger.info("service %s sees its nodes and engines again", self.name)
        self._is_answered = True

    async def _bring_about(self, now_s: float) -> None:
        """Take the steps that are due."""
        if not self._scaler.is_fixed and self._kept is None:
            await self._scale(now_s)
        views = [each.view for each in self._engines.values()]
        nodes = await asyncio.to_thread(self._launcher.nodes)
        await self._replace_former(nodes, now_s)
        self._rests.note_there(nodes, now_s)
        resting, wanted = self._rests.resting(now_s), self._to_have(now_s)
        steps = next_steps(
            views,
            nodes=nodes,
            resting=resting,
            former={} if self._former is None else self._former.roles_by_node(),
            wanted=wanted,
            # Beside an earlier version they come one after the other.
            max_starting=1 if self.has_former else len(nodes),
        )
        for step in steps:
            match step:
                case Start(node=node, role=role):
                    await self._start(node, role)
                case Drain(name=name) | GiveUp(name=name):
                    self._engines[name].drain(self._launcher)
        views = [each.view for each in self._engines.values()]
        num_wanted = sum(wanted.values())
        self._note_waiting(
            waiting_engines(views, nodes=nodes, resting=resting, num_wanted=num_wanted)
        )

    async def _replace_former(self, nodes: Sequence[str], now_s: float) -> None:
        """Let engines of the former version end, as far as this one has others in their place."""
        serving, lacks_room = self._followers(nodes, now_s), self._lacks_room
        if lacks_room is None and self._fills_room is not None and now_s < self._fills_room[1]:
            # Else the former would start another one in the place of that which has made room.
            lacks_room = self._fills_room[0]
        if self._former is None or not self.has_former:
            return
        if serving or lacks_room is not None:
            kept = kept_roles(
                self._former.roles,
                serving=serving,
                wanted=self._wanted,
                num_nodes=len(nodes),
                lacks_room=lacks_room,
            )
            await self._former.keep(kept)

    def _note_waiting(self, waiting: list[Waiting]) -> None:
        """Say which engines wait, and for what, whenever that has changed."""
        if waiting == self._waiting:
            return
        self._waiting = waiting
        for each in waiting:
            logger.info(
                "service %s wants %d engines; %d wait for %s",
                self.name,
                sum(self._wanted.values()),
                each.num_engines,
                each.reason,
            )

    async def _start(self, node: str, role: EngineRole) -> None:
        there = list(await asyncio.to_thread(self._launcher.engines))
        there += [] if self._former is None else self._former.engines
        self._latest_number = max(self._latest_number + 1, next_number(self.name, there))
        engine = ServiceEngine(
            engine_name(self.name, self._latest_number), self._latest_number, node, role
        )
        self._engines[engine.name] = engine
        logger.info("engine %s, role %s, starts on node %s", engine.name, role, node)
        life = asyncio.create_task(
            engine.live(self._launcher, lambda: self._note_serving(engine)), name=engine.name
        )
        self._lives[life] = engine
        life.add_done_callback(lambda _: self._changed.set())

    def _note_serving(self, engine: ServiceEngine) -> None:
        now_s = time.monotonic()
        if self._lacks_room is not None:
            self._fills_room = (self._lacks_room, now_s + _FOUND_S)
        self._has_served, self._lacks_room = True, None
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
            self._lacks_room = engine.role if isinstance(engine.failure, NoRoom) else None
            is_users = isinstance(engine.failure, ConfigError | CheckpointError)
            if is_users and self._lacks_room is None and not self._has_served:
                raise engine.failure
            logger.warning("engine %s does not start: %s", engine.name, engine.failure)
            self._rests.note_failure(engine.node, str(engine.failure), now_s)

    def _drain_all(self) -> None:
        for engine in self._engines.values():
            engine.drain(self._launcher)

    async def _end_all(self) -> None:
        self._drain_all()
        await asyncio.gather(*self._lives, return_exceptions=True)
