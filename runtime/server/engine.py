"""What the HTTP server needs of an engine."""

from collections.abc import Mapping
from typing import Any, Protocol

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.routing_figures import RoutingFigures


class ServedEngine(Protocol):
    """The part of `AsyncLLM` that the server uses; its docstrings hold here, too."""

    name: str

    @property
    def routing_figures(self) -> RoutingFigures:
        """Where requests went of those that were sent to one of several engines."""
        ...

    async def connected(self) -> EngineClient:
        """The open connection, for requests and for text; a new one if there is none."""
        ...

    async def limits(self) -> ModelLimits:
        """What the model allows. Raises EngineDead if the engine cannot be reached."""
        ...

    async def stats(self) -> dict[str, Any]:
        """Figures of every actor."""
        ...

    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """Figures of every actor, by the engine's name."""
        ...

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop cached pages that no request uses."""
        ...

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use another L3 backend from now on."""
        ...

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3."""
        ...

    async def sleep(self, weights: bool = False) -> dict[str, Any]:
        """Give the GPUs' memory back."""
        ...

    async def wake(self) -> dict[str, Any]:
        """Take the GPUs' memory again."""
        ...

    async def phase_by_engine(self) -> dict[str, str | None]:
        """Whether each engine is awake, by its name; None where nobody knows."""
        ...

    async def explain(self, request_id: str) -> dict[str, Any]:
        """Where each range of a request's prompt came from."""
        ...

    async def prefetch_state(self, prefetch_id: str) -> dict[str, Any] | None:
        """What is known of a prefetch."""
        ...
