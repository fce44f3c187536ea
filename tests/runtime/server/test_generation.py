"""One HTTP request as requests to the engine, without an engine."""

from collections.abc import AsyncGenerator
from typing import Any

from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.server.generation import Generation, choices_of


class Recorder:
    """An engine that ends every request at once, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str | None]] = []
        self.encoded: list[str] = []

    async def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return list(text.encode())

    async def generate(
        self, prompt: Any, _: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append((prompt, options["sample_of"]))
        yield RequestOutput(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=[],
            outputs=[CompletionOutput(finish_reason="length")],
            finished=True,
            metrics=RequestMetrics(),
        )


async def ask(num_samples: int) -> Recorder:
    engine = Recorder()
    generation = Generation(
        request_id="r",
        prompts=("ab", {"prompt_token_ids": [7]}),
        num_samples=num_samples,
        params=SamplingParams(),
        options=RequestOptions(),
    )
    assert len([each async for each in choices_of(engine, generation)]) == 2 * num_samples  # type: ignore[arg-type]
    return engine


async def test_text_of_several_samples_is_tokenised_once_and_the_first_sample_comes_first() -> None:
    engine = await ask(num_samples=3)
    assert engine.encoded == ["ab"]
    text, ids = [97, 98], {"prompt_token_ids": [7]}
    assert engine.asked == [
        *((text, None), (text, "r-0"), (text, "r-0")),
        *((ids, None), (ids, "r-3"), (ids, "r-3")),
    ]


async def test_text_of_one_sample_is_left_to_the_engine() -> None:
    engine = await ask(num_samples=1)
    assert engine.encoded == []
    assert [prompt for prompt, _ in engine.asked] == ["ab", {"prompt_token_ids": [7]}]
