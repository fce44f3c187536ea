"""Sends a benchmark's requests to an engine, over Raydix's own client."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.cli.load.requests import BlockPrompt, ChatPrompt, LoadRequest
from raydix.runtime.cli.load.run import OutputCame, Usage

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM


class EngineSender:
    """A `Sender` that asks an engine. Outputs are greedy, and as long as they are asked for."""

    def __init__(
        self, engine: "AsyncLLM", cache_salts: Iterator[str | None], *, with_hints: bool = False
    ) -> None:
        """`cache_salts`: one for each request. `with_hints`: say what comes next of sessions."""
        self._engine = engine
        self._with_hints = with_hints
        self._cache_salts = cache_salts

    async def stream(self, request: LoadRequest) -> AsyncGenerator[OutputCame | Usage, None]:
        """Generate greedily, to the length that is asked for."""
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.output_tokens,
            ignore_eos=True,
            output_kind=OutputKind.DELTA,
            detokenize=False,
        )
        prompt = await self._prompt_of(request)
        num_output = 0
        async with aclosing(
            self._engine.generate(
                prompt,
                params,
                cache_salt=next(self._cache_salts),
                session_id=request.session_id,
                priority=request.priority,
                retention=request.hint if self._with_hints else None,
            )
        ) as outputs:
            async for output in outputs:
                num_output += len(output.outputs[0].token_ids)
                if output.outputs[0].token_ids:
                    yield OutputCame()
                if output.finished:
                    yield Usage(
                        num_prompt_tokens=len(output.prompt_token_ids),
                        num_output_tokens=num_output,
                        tokens_by_source=output.metrics.cached_tokens_by_source,
                    )

    async def _prompt_of(self, request: LoadRequest) -> Prompt:
        match request.prompt:
            case BlockPrompt():
                return request.prompt.token_ids()
            case ChatPrompt():
                return await self._engine.apply_chat_template(list(request.prompt.messages))
            case _:
                return request.prompt
