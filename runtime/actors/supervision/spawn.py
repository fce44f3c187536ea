"""Making actors: what the Supervisor needs of Ray, so that it can be tested without it."""

from enum import StrEnum
from typing import Any, Protocol


class ActorKind(StrEnum):
    """The actors of an engine, by the word in their Ray names."""

    SUPERVISOR = "supervisor"
    SCHEDULER = "scheduler"
    HOST_MEMORY = "host"
    STORAGE = "storage"
    GPU = "gpu"


class RunningActor(Protocol):
    """One incarnation of an actor."""

    @property
    def pid(self) -> int:
        """Its process."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and wait for its result. Raises the method's own error, or EngineDead if
        the actor ends.
        """

    async def ping(self) -> None:
        """Return once the actor's event loop has answered."""

    async def wait_ended(self) -> None:
        """Return once its process has ended."""

    def kill(self) -> None:
        """End it now, whatever it does."""


class Spawner(Protocol):
    """Makes actors."""

    async def spawn(self, kind: ActorKind, name: str, /, **arguments: Any) -> RunningActor:
        """Start an actor of `kind` with these constructor arguments, under `name`. Raises
        RaydixError.
        """
