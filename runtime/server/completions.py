"""`/v1/completions`."""

from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.event_stream import DONE, EventStream, data_event
from raydix.runtime.server.generation import Generation, choices_of, options_of
from raydix.runtime.server.plain_chunks import PlainChunks
from raydix.runtime.server.served import REFUSALS, Served, caller_of, new_request_id
from raydix.runtime.server.wire.completions import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    completion_choice,
    prompts_of,
)
from raydix.runtime.server.wire.generation import check_stream_options, sampling_of
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
        choices = {}
        async for index, output in choices_of(self.served.engine, self.generation):
            meter.add(index, output)
            choices[index] = self._choice(index, output.outputs[0], 0)
        return self.completion([choices[index] for index in sorted(choices)], meter.usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The choices piece by piece."""
        options = check_stream_options(self.request, self.request.stream_options)
        meter = UsageMeter(self.generation.num_samples)
        plain = PlainChunks(self._plain_chunk)
        num_sent: defaultdict[int, int] = defaultdict(int)

        async for index, output in choices_of(self.served.engine, self.generation):
            meter.add(index, output)
            new = output.outputs[0]
            event = None if options.continuous_usage_stats else plain.event(index, new)
            if event is None:
                choice = self._choice(index, new, num_sent[index])
                usage = meter.usage() if options.continuous_usage_stats else None
                event = data_event(self.completion([choice], usage))
            num_sent[index] += len(new.text)
            yield event

        if options.include_usage:
            yield data_event(self.completion([], meter.usage()))
        yield DONE

    def _choice(self, index: int, new: CompletionOutput, num_sent: int) -> CompletionChoice:
        return completion_choice(index, new, num_sent, self.request.return_token_ids)

    def _plain_chunk(self, index: int, new: CompletionOutput) -> Completion:
        return self.completion([self._choice(index, new, 0)], None)


def completion_routes(served: Served) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=Completion, responses=REFUSALS)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Complete one prompt or several."""
        served.check_model(body.model)
        check_stream_options(body, body.stream_options)
        generation = Generation(
            request_id=new_request_id(),
            prompts=tuple(prompts_of(body)),
            num_samples=body.n,
            params=sampling_of(body, max_tokens=body.max_tokens, logprobs=body.logprobs),
            options=options_of(body, caller_of(request), body.session_id),
        )
        generation.check()

        answer = _Answer(served, body, generation, served.now())
        if body.stream:
            return EventStream(answer.events())
        return json_answer(await while_connected(request.receive, answer.whole()))

    return router
