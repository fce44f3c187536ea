"""An in-process engine in the shape of `AsyncLLM`, for tests of what is built on that."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.explained import explained
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.testing.engine import InProcessEngine


class InProcessLLM:
    """The methods of `AsyncLLM` on an engine in this process. Belongs to the engine's loop."""

    def __init__(self, engine: InProcessEngine, client: EngineClient) -> None:
        self.name = "in-process"
        self._engine = engine
        self._client = client

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        request_id: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate for one prompt, as `AsyncLLM` does."""
        return self._client.generate(prompt, sampling_params, request_id, RequestOptions(**options))

    @property
    def routing_figures(self) -> RoutingFigures:
        """Nothing is routed: there is one engine."""
        return RoutingFigures([self.name])

    async def connected(self) -> EngineClient:
        """The engine's client, which is connected from the start."""
        return self._client

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any
    ) -> list[int]:
        """The token ids of a chat."""
        return await self._client.texts.encode_chat(messages, template_arguments)

    async def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return await self._client.texts.encode(text)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids."""
        return await self._client.texts.decode(token_ids)

    async def limits(self) -> ModelLimits:
        """The limits of the engine's model."""
        return self._client.limits

    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """Figures of every actor, by the engine's name."""
        return {self.name: await self.stats()}

    async def stats(self) -> dict[str, Any]:
        """The figures of all actors."""
        return await self._engine.stats()

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Flush L1 and L2, and L3 if asked for."""
        return await self._engine.flush(l3)

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Give the engine another L3 backend."""
        return await self._engine.attach_storage(dict(section))

    async def detach_storage(self) -> dict[str, Any]:
        """Leave the engine without an L3 backend."""
        return await self._engine.detach_storage()

    async def sleep(self, weights: bool = False) -> dict[str, Any]:
        """Have the engine sleep."""
        return await self._engine.fall_asleep(weights)

    async def wake(self) -> dict[str, Any]:
        """Have the engine wake."""
        return await self._engine.wake()

    async def phase_by_engine(self) -> dict[str, str | None]:
        """Whether the engine is awake, by its name."""
        return {self.name: await self._engine.phase()}

    async def explain(self, request_id: str) -> dict[str, Any]:
        """Explain a request. Raises UnknownRequest if the engine does not know it any more."""
        return await explained(self._engine.explain, request_id)

    async def prefetch_state(self, request_id: str) -> dict[str, Any] | None:
        """What the engine knows of a prefetch."""
        return await self._engine.prefetch_state(request_id)
