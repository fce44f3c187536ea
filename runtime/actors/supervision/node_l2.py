"""How an engine comes to the L2 of its node: it joins the one that is there, or makes one."""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from raydix.errors import ConfigError, EngineDead, RaydixError
from raydix.runtime.actors.l2_claims import hold_claim, l2_claims, taking_turns
from raydix.runtime.actors.l2_record import L2Record, find_l2, is_layout_on, l2_path, l2s_of
from raydix.runtime.actors.lock_file import LockFile
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.l2_plan import Guest, L2Plan
from raydix.runtime.actors.supervision.node_share import (
    KeptL2,
    L2Claim,
    L2Wish,
    bytes_left,
    choose_to_end,
    too_little,
)
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import (
    ActorKind,
    EngineSpawner,
    RunningActor,
    actor_name,
)
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.l2 import L2Section
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.phases import phase
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10
_RETRY_S = 0.1
_MADE_S = 120.0
"""The time for an L2 that another engine of the model makes to be found, if there is room for one
alone.
"""
_END_S = 30.0
"""The time for an L2 that gives way to end."""


class _NoRoom(ConfigError):
    """The node's L2s have no room for one more with its floor."""


class NodeL2:
    """Finds or makes the L2 that an engine is to use, as often as it needs one."""

    def __init__(
        self,
        spawner: EngineSpawner,
        supervision: Supervision,
        guest: Guest,
        section: L2Section,
        *,
        model_path: str,
        log_path: str,
    ) -> None:
        """`guest`: the engine as it introduces itself. `log_path`: see `Spawner`.

        `model_path`: what the pages are of, for people.
        """
        self._spawner = spawner
        self._section = section
        self._model_path = model_path
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
                # Whose turn it is is known once the weights are.
                with contextlib.suppress(_NoRoom):
                    own = await self._make(early.size_bytes)
                    await own.call("make_arena", early, folder)
            planned = await plan()
            give_up_s = time.monotonic() + _MADE_S

            attempt = 0
            while True:
                try:
                    found = await self._find(planned)
                    if found is None and own is None:
                        own = await self._make(planned.size_bytes, held())
                    actor = found or own
                    assert actor is not None, "it was made if none was found"
                    arena = await actor.call("join", planned, self.guest, held())
                except _NoRoom:
                    # One of this model may be on its way, and will do.
                    if time.monotonic() > give_up_s or not self._is_one_being_made():
                        raise
                    await asyncio.sleep(_RETRY_S)
                    continue
                except EngineDead as error:
                    # It has ended meanwhile, or gives way, or another engine was quicker.
                    attempt += 1
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
        except BaseException:
            _discard(own)
            raise

    def _is_there(self, layout: KvLayout) -> bool:
        """Whether the node has an L2 that may be the one, once the weights are known."""
        return self._node is not None and is_layout_on(self._node, layout)

    def _is_one_being_made(self) -> bool:
        """Whether some L2 of this model has room already, and cannot be found yet."""
        found = {record.name for record in l2s_of(self._node)} if self._node else set()
        return self._node is not None and any(
            claim.model_path == self._model_path and claim.name not in found
            for claim in l2_claims(self._claims_at)
        )

    @property
    def _node(self) -> str | None:
        """The node on which L2 is found by others; None if it is the engine's alone."""
        return self._spawner.node if self._section.shared else None

    @property
    def _claims_at(self) -> str:
        """The node whose memory L2 takes; an engine in one process is by itself."""
        return self._spawner.node or f"process-{os.getpid()}"

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

    async def _make(self, size_bytes: int, held: ArenaLocation | None = None) -> RunningActor:
        """Start an L2 of this size, or of what is left of the node's, but no less than its floor.

        `held`: an arena that it takes over, which is counted as it is. Raises ConfigError.
        """
        name = f"l2-{secrets.token_hex(4)}"
        if (lacking_bytes := size_bytes - available_memory_bytes()) > 0:
            await self._make_room(lacking_bytes)
        claim, file = await self._claim(name, size_bytes, held)
        try:
            with phase(logger, f"process of {ActorKind.HOST_MEMORY.value} started"):
                return await self._spawner.spawn_l2(
                    actor_name(name, ActorKind.HOST_MEMORY),
                    claim.size_bytes,
                    log_path=self._log_path,
                    claim=claim,
                    node=self._node,
                    maker_pid=os.getpid(),
                    supervision=self._supervision,
                )
        finally:
            # By now the L2 holds its claim itself, unless it has not started.
            file.remove()

    async def _claim(
        self, name: str, size_bytes: int, held: ArenaLocation | None
    ) -> tuple[L2Claim, LockFile]:
        """Note what an L2 takes of the node's memory, as long as the file is not removed."""
        floor_bytes, total_bytes = self._section.floor_bytes, self._section.total_bytes_per_node
        wish = L2Wish(
            size_bytes=size_bytes, floor_bytes=floor_bytes or size_bytes, total_bytes=total_bytes
        )

        def claimed(least_bytes: int) -> tuple[L2Claim, LockFile] | int:
            with taking_turns(self._claims_at):
                left = _pages_bytes(held) if held else bytes_left(wish, l2_claims(self._claims_at))
                if left < least_bytes and not held:
                    return left
                claim = L2Claim(
                    node=self._claims_at,
                    name=name,
                    model_path=self._model_path,
                    size_bytes=left,
                    total_bytes=total_bytes,
                )
                return claim, hold_claim(claim)

        found = await asyncio.to_thread(claimed, wish.size_bytes)
        if isinstance(found, int):
            # Who is kept for nobody makes room before anybody has less than was asked for.
            await self._make_room(wish.size_bytes - found)
            found = await asyncio.to_thread(claimed, wish.floor_bytes)
        if isinstance(found, int):
            raise _NoRoom(too_little(wish, l2_claims(self._claims_at)))
        if found[0].size_bytes < size_bytes:
            sizes = format_bytes(found[0].size_bytes), format_bytes(size_bytes)
            logger.warning(
                "L2 has %s of the %s of cache.l2.bytes_per_node: others have the rest "
                "of cache.l2.total_bytes_per_node",
                *sizes,
            )
        return found

    async def _make_room(self, lacking_bytes: int) -> None:
        """Let L2s of this node that are kept for nobody give memory back, no more than it takes."""
        actors: dict[str, RunningActor] = {}
        kept = []
        for record in [] if self._spawner.node is None else l2s_of(self._spawner.node):
            actor = await self._reach(record)
            try:
                described = None if actor is None else await actor.call("describe")
            except RaydixError as error:
                logger.info("%s has ended: %s", record.name, error)
                continue
            if actor is not None and described is not None and not described["engines"]:
                actors[record.name] = actor
                kept.append(
                    KeptL2(
                        name=record.name,
                        size_bytes=described["size_bytes"],
                        ends_in_s=described["ends_in_s"] or 0.0,
                    )
                )
        await self._end([actors[each.name] for each in choose_to_end(kept, lacking_bytes)])

    async def _end(self, actors: Sequence[RunningActor]) -> None:
        """End L2s that nobody uses; one that is used by now goes on."""
        ending = []
        for actor in actors:
            try:
                if await actor.call("end_unused"):
                    logger.info("%s ends for lack of memory", actor)
                    ending.append(actor.wait_ended())
            except RaydixError as error:
                logger.info("%s has ended: %s", actor, error)
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


def _pages_bytes(arena: ArenaLocation) -> int:
    """The bytes of an arena's pages."""
    return arena.geometry.num_slabs * arena.geometry.slab_bytes
