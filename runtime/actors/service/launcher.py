"""Where engines of a service start: the nodes of a Ray cluster, or what a test makes of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.config.policies import EngineRole


class StartedEngine(Protocol):
    """An engine that serves, as the process has it which started it."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Make a control call. Raises EngineDead."""

    async def wait_ended(self) -> None:
        """Wait until it ends. Raises EngineDead that says why.

        Raises EngineAway if the way to it is lost, as by any call: that says nothing of the engine.
        """

    def release(self) -> None:
        """End it, if it has not ended, and give back what was made for it. May be called twice.

        Blocks, and raises whatever Ray raises.
        """


class Launcher(Protocol):
    """Knows the nodes, and starts engines on them. Its methods block.

    What is only asked raises EngineDead while nobody can tell.
    """

    @property
    def drain_s(self) -> float:
        """The longest that an engine which is stopped takes to drain."""

    def nodes(self) -> Sequence[str]:
        """The ids of the nodes that live."""

    def addresses(self) -> Mapping[str, str]:
        """The addresses of the nodes that live, by their ids."""

    def engines(self) -> Sequence[str]:
        """The names of all engines of the service, whoever has started them."""

    def start(self, name: str, node: str, role: EngineRole, control: StartControl) -> StartedEngine:
        """Start an engine and wait until it serves. Raises RaydixError, NoRoom among them."""
