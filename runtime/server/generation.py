"""One HTTP request as requests to the engine: a request per prompt and sample."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.samples import params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.wire.generation import (
    GenerationFields,
    check_num_choices,
)

Choices = AsyncGenerator[tuple[int, RequestOutput], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one HTTP request asks of the engine: choice `i` is of prompt `i // num_samples`."""

    request_id: str
    prompts: tuple[Prompt, ...]
    num_samples: int
    params: SamplingParams
    options: RequestOptions

    @property
    def num_choices(self) -> int:
        """Requests to the engine."""
        return len(self.prompts) * self.num_samples

    def check(self) -> None:
        """Raise BadRequest for what the engine would refuse, or for too many choices."""
        check_num_choices(len(self.prompts), self.num_samples)
        self.options.check()


def options_of(fields: GenerationFields, caller: Caller, session_id: str | None) -> RequestOptions:
    """How the Scheduler should treat a request: salt and session are the tenant's own."""
    return RequestOptions(
        cache_salt=caller.within_tenant(fields.cache_salt),
        session_id=None if session_id is None else caller.within_tenant(session_id),
        routing_key=fields.routing_key,
        deadline_s=fields.deadline_s,
    )


async def choices_of(engine: ServedEngine, generation: Generation) -> Choices:
    """Outputs of all choices as they come, each with its choice's number.

    Leaving before the end aborts what still runs; so does the first error, which is raised.
    """
    generation = await _tokenized(engine, generation)
    streams = [_open(engine, generation, index) for index in range(generation.num_choices)]
    merged = _alone(streams[0]) if len(streams) == 1 else _merged(streams)
    async with contextlib.aclosing(merged) as choices:
        async for choice in choices:
            yield choice


async def _tokenized(engine: ServedEngine, generation: Generation) -> Generation:
    """The request with token ids where a prompt has several samples.

    Each would be tokenised on a thread of its own: one that came before the first sample would not
    meet it, and compute the prompt again.
    """
    if generation.num_samples == 1:
        return generation
    ids = [
        await engine.encode(each) if isinstance(each, str) else each for each in generation.prompts
    ]
    return replace(generation, prompts=tuple(ids))


def _open(
    engine: ServedEngine, generation: Generation, index: int
) -> AsyncGenerator[RequestOutput, None]:
    prompt, sample = divmod(index, generation.num_samples)
    params = params_of_sample(generation.params, sample)
    request_id = generation.request_id
    options = generation.options
    first = f"{request_id}-{index - sample}"

    return engine.generate(
        generation.prompts[prompt],
        params,
        request_id if generation.num_choices == 1 else f"{request_id}-{index}",
        cache_salt=options.cache_salt,
        session_id=options.session_id,
        routing_key=options.routing_key,
        deadline_s=options.deadline_s,
        sample_of=first if sample else None,
    )


async def _alone(stream: AsyncGenerator[RequestOutput, None]) -> Choices:
    """The usual case, which needs no task per output."""
    async with contextlib.aclosing(stream):
        async for output in stream:
            yield 0, output


async def _merged(streams: Sequence[AsyncGenerator[RequestOutput, None]]) -> Choices:
    waiting = {asyncio.ensure_future(anext(each)): index for index, each in enumerate(streams)}
    try:
        while waiting:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ready = [(index, task) for task, index in waiting.items() if task.done()]
            for index, task in sorted(ready, key=lambda each: each[0]):
                del waiting[task]
                output = task.result()
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, output
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
