"""The storage actor of a node's L2: which backend it drives, and what engines are told of it."""

import logging
from collections.abc import Awaitable
from typing import Any

from raydix.errors import EngineDead
from raydix.runtime.actors.arena_users import OF_HOST_MEMORY, ArenaUsers
from raydix.runtime.actors.host_memory import HostMemoryActor
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.storage import StorageSetup
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor, Spawner, actor_name
from raydix.runtime.actors.supervision.storage_switch import StorageSwitch
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.phases import phase
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)


class NodeStorage:
    """Owns: the switch between backends of an L2, whose `SwitchedEngine` it is."""

    def __init__(
        self,
        name: str,
        host: HostMemoryActor,
        *,
        address: str,
        secret: bytes,
        spawner: Spawner,
        supervision: Supervision,
        log_path: str,
    ) -> None:
        """`name`: the L2's. `address`, `secret`: where HostMemory listens for storage actors."""
        self._name = name
        self._host = host
        self.address = address
        self._secret = secret
        self._spawner = spawner
        self._log_path = log_path
        self.switch = StorageSwitch(self, supervision)
        self._namespace: Namespace | None = None
        self._arena: ArenaLocation | None = None
        self._users: ArenaUsers | None = None

    def start(
        self,
        section: L3Section | None,
        namespace: Namespace,
        arena: ArenaLocation,
        users: ArenaUsers,
    ) -> None:
        """HostMemory decides within this arena from now on; use the backend, if there is one."""
        self._namespace, self._arena, self._users = namespace, arena, users
        if section is not None:
            self.switch.start(section)

    async def make_storage(self, number: int, incarnation: int) -> RunningActor:
        """Start an incarnation of a storage actor, which the arena notes before it maps it."""
        kind = ActorKind.STORAGE
        with phase(logger, f"process of {kind.value} started"):
            actor = await self._spawner.spawn(
                kind,
                actor_name(self._name, kind, number),
                log_path=self._log_path,
                name=self._name,
                incarnation=incarnation,
            )
        assert self._users is not None, "no storage is made before the start"
        self._users.add(OF_HOST_MEMORY, ProcessId.of(actor.pid))
        return actor

    async def open_storage(self, actor: RunningActor, section: L3Section) -> None:
        """Tell a storage actor the namespace and the arena, and let it open its backend."""
        assert self._namespace is not None, "it has been started"
        assert self._arena is not None, "it has been started"
        setup = StorageSetup(
            backend=section,
            namespace=self._namespace,
            arena=self._arena,
            host_address=self.address,
            secret=self._secret,
        )
        await actor.call("start", setup)

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        """Call a method of HostMemory."""
        result = getattr(self._host, method)(*arguments)
        return await result if isinstance(result, Awaitable) else result

    async def wait(self) -> str | None:
        """Return once HostMemory uses the backend in use, or there is none.

        Returns why it was given up, if it was. Raises ConfigError if it cannot work.
        """
        try:
            await self.switch.met()
        except EngineDead as error:
            return str(error)
        return None

    async def facts(self) -> dict[str, Any]:
        """The storage actor's figures and health, None without one, and errors by backend."""
        storage, figures, health = self.switch.current, None, None
        if storage is not None:
            actor = storage.keeper.actor
            health = {
                "pid": None if actor is None else actor.pid,
                "incarnation": storage.keeper.incarnation,
                "serves": actor is not None,
            }
            try:
                figures = None if actor is None else await actor.call("stats")
            except EngineDead:
                figures = None
        errors = self.switch.last_errors(figures)
        return {
            "figures": figures,
            "health": health,
            "restarts": 0 if storage is None else storage.keeper.num_restarts,
            "errors": {backend: last.to_values() for backend, last in errors.items()},
        }
