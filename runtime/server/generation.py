"""One HTTP request as requests to the engine: a request per prompt and sample."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from raydix.errors import RaydixError
from raydix.ids import RequestId
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.open_requests import OnNews, OpenRequest, RequestGroup
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt, TokenizedPrompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.samples import params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.server.errors import refused_as
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.wire.anthropic import MessagesRequest, asked_keep_s
from raydix.runtime.server.wire.generation import (
    GenerationFields,
    check_num_choices,
    session_of,
)
from raydix.runtime.server.wire.retention import asked_retention

ROUTING_HEADER = "x-raydix-routing"
"""The header that tells to which of several engines a request went first, and why."""
Choices = AsyncGenerator[tuple[int, RequestOutput], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one HTTP request asks of the engine: choice `i` is of prompt `i // num_samples`."""

    client: EngineClient
    """The engines of one version of the model, by whose tokenizer the prompts are read."""
    request_id: str
    prompts: tuple[Prompt, ...]
    prompt_field: str
    """The field of the body from which the prompts are."""
    num_samples: int
    params: SamplingParams
    options: RequestOptions
    tenant: str | None
    """The tenant whose turn it is to tokenise; None: no tenants are in use."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer, which are known once the engine is asked."""

    @property
    def num_choices(self) -> int:
        """Requests to the engine."""
        return len(self.prompts) * self.num_samples

    def check(self) -> None:
        """Raise BadRequest for what the engine would refuse, or for too many choices."""
        check_num_choices(len(self.prompts), self.num_samples)
        self.options.check()


def options_of(fields: GenerationFields, caller: Caller) -> RequestOptions:
    """How the Scheduler should treat a request: salt and session are the tenant's own.

    Raises BadParameter if the session has two names.
    """
    session_id = session_of(fields)
    return RequestOptions(
        cache_salt=caller.within_tenant(fields.cache_salt),
        session_id=None if session_id is None else caller.within_tenant(session_id),
        retention=asked_retention(
            fields.retention,
            fields.kv_hints,
            fields.prompt_cache_retention,
            asked_keep_s(fields) if isinstance(fields, MessagesRequest) else None,
        ),
        routing_key=fields.routing_key,
        deadline_s=fields.deadline_s,
    )


async def open_choices(generation: Generation, on_news: OnNews) -> RequestGroup:
    """Ask the engine for all choices; the caller closes what this returns.

    Raises RequestRefused, BadRequest and EngineDead, and then nothing is asked.
    """
    client = generation.client
    client.limits.check_num_requests(generation.num_choices, generation.options.cache_salt)
    tokenized = await _all_tokenized(client, generation)

    group = RequestGroup(on_news)
    try:
        for index in range(generation.num_choices):
            group.add(partial(_open, client, generation, tokenized, index))
    except BaseException:
        group.close()
        raise
    if group.route is not None:
        generation.headers[ROUTING_HEADER] = group.route.header
    return group


async def choices_of(generation: Generation) -> Choices:
    """Outputs of all choices as they come, each with its choice's number.

    Leaving before the end aborts what still runs; so does the first error, which is raised.
    """
    news = asyncio.Event()
    with await open_choices(generation, news.set) as group:
        async for index, taken in group.all_news(news):
            if isinstance(taken, RaydixError):
                raise taken
            yield index, taken


async def _all_tokenized(client: EngineClient, generation: Generation) -> list[TokenizedPrompt]:
    """All prompts. The first that is refused ends the work for the others."""
    if len(generation.prompts) == 1:
        return [await _tokenized(client, generation, 0)]
    numbers = range(len(generation.prompts))
    prompts = [asyncio.ensure_future(_tokenized(client, generation, i)) for i in numbers]
    try:
        return await asyncio.gather(*prompts)
    finally:
        for each in prompts:
            each.cancel()
        await asyncio.gather(*prompts, return_exceptions=True)


async def _tokenized(client: EngineClient, generation: Generation, index: int) -> TokenizedPrompt:
    with refused_as(generation.prompt_field, index if len(generation.prompts) > 1 else None):
        return await client.tokenized(generation.prompts[index], generation.tenant)


def _open(
    client: EngineClient,
    generation: Generation,
    prompts: Sequence[TokenizedPrompt],
    index: int,
    on_news: OnNews,
) -> OpenRequest:
    prompt, sample = divmod(index, generation.num_samples)
    request_id = generation.request_id
    options = generation.options
    if sample:
        first = RequestId(f"{request_id}-{index - sample}")
        options = replace(options, sample_of=first)

    return client.open(
        prompts[prompt],
        params_of_sample(generation.params, sample),
        RequestId(request_id if generation.num_choices == 1 else f"{request_id}-{index}"),
        options,
        on_news,
    )
