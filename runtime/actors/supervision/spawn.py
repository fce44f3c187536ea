"""The actors of an engine, by kind and name, and who starts them: Ray, or a test without it."""

from enum import StrEnum
from typing import Any, Protocol

NAMESPACE = "raydix"


class ActorKind(StrEnum):
    """The actors of an engine, by the word in their Ray names."""

    SUPERVISOR = "supervisor"
    SCHEDULER = "scheduler"
    HOST_MEMORY = "host"
    STORAGE = "storage"
    GPU = "gpu"
    EVENTS = "events"


def actor_name(engine: str, kind: ActorKind, number: int | None = None) -> str:
    """The Ray name of an engine's actor, such as `raydix:NAME:gpu0`."""
    return f"{NAMESPACE}:{engine}:{kind.value}{'' if number is None else number}"


class RunningActor(Protocol):
    """One incarnation of an actor."""

    @property
    def pid(self) -> int:
        """The id of its process."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and wait. Raises the method's error, or EngineDead if the actor ends."""

    async def ping(self) -> None:
        """Return once the actor's event loop has answered."""

    async def wait_ended(self) -> None:
        """Return once its process has ended."""

    def kill(self) -> None:
        """End it now, whatever it does."""

    def release(self) -> None:
        """Its keeper needs it no more: end it, unless others use it; then it counts as ended."""


class Spawner(Protocol):
    """Makes actors and starts them."""

    async def spawn(
        self, kind: ActorKind, name: str, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Start an actor under `name`, with these constructor arguments. Raises RaydixError.

        `log_path`: of the `LogDesk` to which its process sends its log.
        """


class EngineSpawner(Spawner, Protocol):
    """Makes the actors of an engine, and finds those that it shares with others."""

    @property
    def node(self) -> str | None:
        """The node whose L2 the engine shares with others; None: it has one of its own."""

    async def spawn_l2(
        self, name: str, size_bytes: int, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Start an L2 under this Ray name, with these constructor arguments.

        Where the engine has a node it outlives whoever makes it. `size_bytes`: of its arena. Raises
        RaydixError.
        """

    async def find_l2(self, name: str, pid: int, /, *, log_path: str) -> RunningActor | None:
        """The L2 of this Ray name and process, which logs to this engine, too; None if it ended."""
