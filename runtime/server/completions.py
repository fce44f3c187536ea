"""The route `/v1/completions`."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.errors import HttpFailure
from raydix.runtime.server.event_stream import DONE, EventStream, data_event, data_failure
from raydix.runtime.server.generation import Generation, choices_of, open_choices, options_of
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.plain_chunks import PlainChunks
from raydix.runtime.server.served import REFUSALS, Served, caller_of, new_request_id
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.completions import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    check_echo,
    completion_choice,
    max_tokens_of,
    num_prompt_logprobs_of,
    prompts_of,
)
from raydix.runtime.server.wire.generation import check_stream_options, sampling_of
from raydix.runtime.server.wire.prompt_logprobs import Echo, told_prompt_logprobs
from raydix.runtime.server.wire.usage import Usage, UsageMeter


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request's answer in the making."""

    served: Served
    request: CompletionRequest
    generation: Generation
    created: int

    def completion(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        """The answer, or a chunk of it."""
        return Completion(
            id=f"cmpl-{self.generation.request_id}",
            created=self.created,
            model=self.served.model_name,
            choices=choices,
            usage=usage,
        )

    async def whole(self) -> Completion:
        """All choices, once they are finished."""
        meter = UsageMeter(self.generation.num_samples)
        outputs = {}
        async for index, output in choices_of(self.generation):
            outputs[index] = self.shown(output)
            meter.add(index, outputs[index])

        # On a thread: a long prompt has many logprobs.
        choices = await asyncio.to_thread(self._choices, outputs, await self._echoes(outputs))
        return self.completion(choices, meter.usage())

    def choice(self, index: int, new: CompletionOutput, echo: Echo | None) -> CompletionChoice:
        """The choice of an answer, with what is new."""
        return completion_choice(index, new, self.request.return_token_ids, echo)

    def shown(self, output: RequestOutput) -> RequestOutput:
        """The tokens that the engine generates, without the one that nobody asked for."""
        return output if self.request.max_tokens else _without_tokens(output)

    async def _echoes(self, outputs: dict[int, RequestOutput]) -> list[Echo | None]:
        """The text to repeat before each prompt's first sample; None where none is asked for."""
        firsts = [outputs[index] for index in range(0, len(outputs), self.request.n)]
        return [await self.echo(each) if self.request.echo else None for each in firsts]

    def _choices(
        self, outputs: dict[int, RequestOutput], echoes: list[Echo | None]
    ) -> list[CompletionChoice]:
        """All choices, whole."""
        choices = []
        told = None
        for index, output in sorted(outputs.items()):
            prompt, sample = divmod(index, self.request.n)
            if sample == 0 and self.request.prompt_logprobs is not None:
                told = told_prompt_logprobs(output.prompt_logprobs)
            choice = self.choice(index, output.outputs[0], echoes[prompt])
            choices.append(choice.model_copy(update={"prompt_logprobs": told}))
        return choices

    async def echo(self, output: RequestOutput) -> Echo:
        """The prompt, to be put before an output of it."""
        desk = self.generation.client.texts
        texts = await desk.prompt_texts(
            output.prompt_token_ids,
            output.prompt,
            is_whole=not self.request.max_tokens,
            tenant=self.generation.tenant,
        )
        # As the tokens have it where places in it are told: a tokenizer may change what came.
        given = output.prompt if output.prompt_logprobs is None else None
        return Echo(
            text="".join(texts) if given is None else given,
            token_ids=output.prompt_token_ids,
            token_texts=texts,
            logprobs=output.prompt_logprobs,
        )


class _Events:
    """Owns: how much of a stream was told."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._options = check_stream_options(answer.request, answer.request.stream_options)
        self._meter = UsageMeter(answer.generation.num_samples)
        self._plain_chunks = PlainChunks(self._plain_chunk)
        self._begun: set[int] = set()

    def plain(self, index: int, output: RequestOutput) -> bytes | None:
        """The event of an output that has nothing but text, as `EventWriter.plain` says."""
        if self._options.continuous_usage_stats or self._is_echo(index):
            return None
        new = output.outputs[0]
        event = self._plain_chunks.event(index, new)
        if event is not None:
            self._meter.add_tokens(new)
        return event

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output, as `EventWriter.event` says."""
        shown = self._answer.shown(output)
        echo = await self._answer.echo(output) if self._is_echo(index) else None
        choice = self._answer.choice(index, shown.outputs[0], echo)
        self._meter.add(index, shown)
        self._begun.add(index)
        usage = self._meter.usage() if self._options.continuous_usage_stats else None
        return data_event(self._answer.completion([choice], usage))

    def closing(self) -> bytes:
        """The events behind the last output, as `EventWriter.closing` says."""
        if not self._options.include_usage:
            return DONE
        return data_event(self._answer.completion([], self._meter.usage())) + DONE

    def failure(self, failed: HttpFailure) -> bytes:
        """The event of an error after the first event, as `EventWriter.failure` says."""
        return data_failure(failed)

    def _is_echo(self, index: int) -> bool:
        return self._answer.request.echo and index not in self._begun

    def _plain_chunk(self, index: int, new: CompletionOutput) -> Completion:
        return self._answer.completion([self._answer.choice(index, new, None)], None)


def _without_tokens(output: RequestOutput) -> RequestOutput:
    has_logprobs = output.outputs[0].logprobs is not None
    nothing = CompletionOutput(
        finish_reason="length",
        logprobs=[] if has_logprobs else None,
        text_offsets=[] if has_logprobs else None,
    )
    return replace(output, outputs=[nothing])


def completion_routes(models: ServedModels) -> APIRouter:
    """The route of completions."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions", response_model=Completion, responses=REFUSALS)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Complete one prompt or several."""
        served = models.of(body.model)
        check_stream_options(body, body.stream_options)
        caller = caller_of(request)
        client = await served.engine.connected()
        check_echo(body, has_tokenizer=client.texts.tokenizer is not None)
        generation = Generation(
            client=client,
            request_id=new_request_id(),
            prompts=tuple(prompts_of(body)),
            prompt_field="prompt",
            num_samples=body.n,
            params=sampling_of(
                body,
                max_tokens=max_tokens_of(body),
                logprobs=body.logprobs,
                prompt_logprobs=num_prompt_logprobs_of(body),
            ),
            options=options_of(body, caller),
            tenant=caller.tenant,
        )
        generation.check()

        answer = _Answer(served, body, generation, served.now())
        if body.stream:
            opening = partial(open_choices, generation)
            return EventStream(opening, _Events(answer), generation.headers)
        whole = await while_connected(request.receive, answer.whole())
        return json_answer(whole, generation.headers)

    return router
