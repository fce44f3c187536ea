"""One HTTP request as requests to the engine, without an engine."""

from raydix.ids import RequestId
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.open_requests import OnNews, OpenRequest
from raydix.runtime.api.prompts import Prompt, TokenizedPrompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.server.generation import Generation, open_choices
from tests.runtime.api.fake_engine import FakeLink
from tests.runtime.api.small_client import client_over

LIMITS = ModelLimits(
    fingerprint="weights",
    max_model_len=64,
    vocab_size=300,
    max_waiting_requests=1024,
    eos_token_ids=(256,),
)


class Recorder:
    """An engine that keeps what it was asked."""

    def __init__(self) -> None:
        self.tokenized_prompts: list[Prompt] = []
        self.asked: list[tuple[list[int], str, str | None]] = []
        self._client = client_over(FakeLink(), LIMITS)

    @property
    def limits(self) -> ModelLimits:
        return self._client.limits

    async def close(self) -> None:
        await self._client.close()

    async def tokenized(self, prompt: Prompt, tenant: str | None = None) -> TokenizedPrompt:
        self.tokenized_prompts.append(prompt)
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        return await self._client.tokenized(ids)

    def open(
        self,
        prompt: TokenizedPrompt,
        params: SamplingParams,
        request_id: RequestId,
        options: RequestOptions,
        on_news: OnNews,
    ) -> OpenRequest:
        self.asked.append((prompt.token_ids.tolist(), request_id, options.sample_of))
        return self._client.open(prompt, params, request_id, options, on_news)


async def ask(num_samples: int) -> Recorder:
    engine = Recorder()
    generation = Generation(
        client=engine,  # type: ignore[arg-type]
        request_id="r",
        prompts=("ab", {"prompt_token_ids": [7]}),
        prompt_field="prompt",
        num_samples=num_samples,
        params=SamplingParams(),
        options=RequestOptions(),
        tenant=None,
    )
    with await open_choices(generation, lambda: None):
        pass
    await engine.close()
    return engine


async def test_a_prompt_of_several_samples_is_tokenised_once_and_the_first_one_comes_first() -> (
    None
):
    engine = await ask(num_samples=3)
    assert engine.tokenized_prompts == ["ab", {"prompt_token_ids": [7]}]
    text, ids = [97, 98], [7]
    assert engine.asked == [
        *((text, "r-0", None), (text, "r-1", "r-0"), (text, "r-2", "r-0")),
        *((ids, "r-3", None), (ids, "r-4", "r-3"), (ids, "r-5", "r-3")),
    ]


async def test_each_prompt_of_one_sample_is_a_request_of_its_own() -> None:
    engine = await ask(num_samples=1)
    assert engine.asked == [([97, 98], "r-0", None), ([7], "r-1", None)]
