"""An in-process engine in the shape of `AsyncLLM`, for tests of what is built on that."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from raydix.errors import UnknownRequest
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.testing.engine import InProcessEngine


class InProcessLLM:
    """See `AsyncLLM`, whose methods these are. Belongs to the engine's loop."""

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
        """See `AsyncLLM`."""
        return self._client.generate(prompt, sampling_params, request_id, RequestOptions(**options))

    async def connected(self) -> EngineClient:
        """See `AsyncLLM`."""
        return self._client

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any
    ) -> list[int]:
        """See `AsyncLLM`."""
        return await self._client.texts.encode_chat(messages, template_arguments)

    async def encode(self, text: str) -> list[int]:
        """See `AsyncLLM`."""
        return await self._client.texts.encode(text)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """See `AsyncLLM`."""
        return await self._client.texts.decode(token_ids)

    async def limits(self) -> ModelLimits:
        """See `AsyncLLM`."""
        return self._client.limits

    async def stats(self) -> dict[str, Any]:
        """See `AsyncLLM`."""
        return await self._engine.stats()

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """See `AsyncLLM`."""
        return await self._engine.flush(l3)

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """See `AsyncLLM`."""
        return await self._engine.attach_storage(dict(section))

    async def detach_storage(self) -> dict[str, Any]:
        """See `AsyncLLM`."""
        return await self._engine.detach_storage()

    async def explain(self, request_id: str) -> dict[str, Any]:
        """See `AsyncLLM`."""
        explanation = await self._engine.explain(request_id)
        if explanation is None:
            raise UnknownRequest(request_id)
        return explanation
