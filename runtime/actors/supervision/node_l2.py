"""How an engine comes to the L2 of its node: it joins the one that is there, or makes one."""

import asyncio
import itertools
import logging
import os
import secrets
from collections.abc import Awaitable, Callable

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.l2_record import L2Record, find_l2, is_layout_on, l2_path, l2s_of
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.l2_plan import Guest, L2Plan
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import (
    ActorKind,
    EngineSpawner,
    RunningActor,
    actor_name,
)
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.phases import phase
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10
_RETRY_S = 0.1
_END_S = 30.0
"""The time for an L2 that gives way to end."""


class NodeL2:
    """Finds or makes the L2 that an engine is to use, as often as it needs one."""

    def __init__(
        self,
        spawner: EngineSpawner,
        supervision: Supervision,
        guest: Guest,
        *,
        is_shared: bool,
        log_path: str,
    ) -> None:
        """`guest`: the engine as it introduces itself. `log_path`: see `Spawner`.

        `is_shared`: whether other engines may use the same one, and it stays for later ones.
        """
        self._spawner = spawner
        self._is_shared = is_shared
        self._supervision = supervision
        self.guest = guest
        self._log_path = log_path

    async def join(
        self,
        plan: Callable[[], Awaitable[L2Plan]],
        early: PlannedArena | None,
        folder: str | None,
        held: Callable[[], ArenaLocation | None],
    ) -> tuple[RunningActor, ArenaLocation]:
        """An L2 that this engine has joined, and where it has its arena.

        `plan` is known once ranks have loaded; until then the arena is made as it will probably be,
        `early`, unless an L2 with such pages is there. `held`: where a rank maps an arena, if one
        does. Raises ConfigError if L2 cannot be as planned, or EngineDead if none lasts.
        """
        own: RunningActor | None = None
        try:
            if early is not None and held() is None and not self._is_there(early.layout):
                own = await self._make(early.size_bytes)
                await own.call("make_arena", early, folder)
            planned = await plan()

            for attempt in itertools.count(1):
                try:
                    found = await self._find(planned)
                    if found is None and own is None:
                        own = await self._make(planned.size_bytes)
                    actor = found or own
                    assert actor is not None, "it was made if none was found"
                    arena = await actor.call("join", planned, self.guest, held())
                except EngineDead as error:
                    # It has ended meanwhile, or gives way, or another engine was quicker.
                    if attempt == _MAX_ATTEMPTS:
                        raise
                    logger.info("L2 is looked for again: %s", error)
                    _discard(own)
                    own = None
                    await asyncio.sleep(_RETRY_S)
                    continue

                if actor is not own:
                    _discard(own)
                return actor, arena
            raise AssertionError("unreachable: attempts are counted without an end")
        except BaseException:
            _discard(own)
            raise

    def _is_there(self, layout: KvLayout) -> bool:
        """Whether the node has an L2 that may be the one, once the weights are known."""
        return self._node is not None and is_layout_on(self._node, layout)

    @property
    def _node(self) -> str | None:
        """The node on which L2 is found by others; None if it is the engine's alone."""
        return self._spawner.node if self._is_shared else None

    async def _find(self, plan: L2Plan) -> RunningActor | None:
        """The L2 of this namespace on the node; None if there is none, or it does not answer."""
        if self._node is None:
            return None
        record = find_l2(l2_path(self._node, plan.namespace, plan.layout))
        actor = None if record is None else await self._reach(record)
        if actor is None:
            return None
        try:
            await within(self._supervision.heartbeat_deadline_s, actor.ping())
        except (TimeoutError, RaydixError) as error:
            logger.error("an L2 of this node does not answer and is ended: %s", error)
            actor.kill()
            raise EngineDead("the L2 that was found did not answer") from error
        return actor

    async def _make(self, size_bytes: int) -> RunningActor:
        if size_bytes > available_memory_bytes():
            await self._end_unused()
        name = f"l2-{secrets.token_hex(4)}"
        with phase(logger, f"process of {ActorKind.HOST_MEMORY.value} started"):
            return await self._spawner.spawn_l2(
                actor_name(name, ActorKind.HOST_MEMORY),
                size_bytes,
                log_path=self._log_path,
                name=name,
                node=self._node,
                maker_pid=os.getpid(),
                supervision=self._supervision,
            )

    async def _end_unused(self) -> None:
        """Let L2s of this node that are kept for nobody give their memory back."""
        ending = []
        for record in [] if self._spawner.node is None else l2s_of(self._spawner.node):
            actor = await self._reach(record)
            try:
                if actor is not None and await actor.call("end_unused"):
                    logger.info("%s ends for lack of memory", record.name)
                    ending.append(actor.wait_ended())
            except RaydixError as error:
                logger.info("%s has ended: %s", record.name, error)
        try:
            await within(_END_S, asyncio.gather(*ending))
        except TimeoutError:
            logger.warning("not all L2s that nobody uses ended within %g s", _END_S)

    async def _reach(self, record: L2Record) -> RunningActor | None:
        return await self._spawner.find_l2(record.actor, record.pid, log_path=self._log_path)


def _discard(own: RunningActor | None) -> None:
    """End what was made, as another one is used; nobody else has joined it."""
    if own is not None:
        own.kill()
