"""`/v1/completions`."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.event_stream import DONE, EventStream, data_event
from raydix.runtime.server.generation import Choices, Generation, choices_of, options_of
from raydix.runtime.server.plain_chunks import PlainChunks
from raydix.runtime.server.served import REFUSALS, Served, caller_of, new_request_id
from raydix.runtime.server.wire.completions import (
    Completion,
    CompletionChoice,
    CompletionRequest,
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
        async for index, output in self._outputs():
            meter.add(index, output)
            outputs[index] = output

        # On a thread: a long prompt has many logprobs.
        choices = await asyncio.to_thread(self._choices, outputs, await self._echoes(outputs))
        return self.completion(choices, meter.usage())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The choices piece by piece."""
        options = check_stream_options(self.request, self.request.stream_options)
        meter = UsageMeter(self.generation.num_samples)
        plain = PlainChunks(self._plain_chunk)
        num_sent: defaultdict[int, int] = defaultdict(int)

        async for index, output in self._outputs():
            meter.add(index, output)
            new = output.outputs[0]
            is_echo = self.request.echo and index not in num_sent
            event = None
            if not is_echo and not options.continuous_usage_stats:
                event = plain.event(index, new)
            if event is None:
                echo = await self._echo(index, output) if is_echo else None
                choice = self._choice(index, new, num_sent[index], echo)
                usage = meter.usage() if options.continuous_usage_stats else None
                event = data_event(self.completion([choice], usage))
                num_sent[index] += len(choice.text)
            else:
                num_sent[index] += len(new.text)
            yield event

        if options.include_usage:
            yield data_event(self.completion([], meter.usage()))
        yield DONE

    def _choice(
        self, index: int, new: CompletionOutput, num_sent: int, echo: Echo | None
    ) -> CompletionChoice:
        return completion_choice(index, new, num_sent, self.request.return_token_ids, echo)

    def _plain_chunk(self, index: int, new: CompletionOutput) -> Completion:
        return self.completion([self._choice(index, new, 0, None)], None)

    async def _outputs(self) -> Choices:
        """What the engine generates, without the token that nobody asked for."""
        async with contextlib.aclosing(choices_of(self.served.engine, self.generation)) as choices:
            async for index, output in choices:
                yield index, output if self.request.max_tokens else _without_tokens(output)

    async def _echoes(self, outputs: dict[int, RequestOutput]) -> list[Echo | None]:
        """Of each prompt, of which its first sample tells."""
        firsts = range(0, len(outputs), self.request.n)
        is_echo = self.request.echo
        return [await self._echo(each, outputs[each]) if is_echo else None for each in firsts]

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
            choice = self._choice(index, output.outputs[0], 0, echoes[prompt])
            choices.append(choice.model_copy(update={"prompt_logprobs": told}))
        return choices

    async def _echo(self, index: int, output: RequestOutput) -> Echo:
        decode, token_ids = self.served.engine.decode, output.prompt_token_ids
        prompt = self.generation.prompts[index // self.request.n]
        return Echo(
            text=prompt if isinstance(prompt, str) else await decode(token_ids),
            token_ids=token_ids,
            first_token=await decode(token_ids[:1]),
            logprobs=output.prompt_logprobs,
        )


def _without_tokens(output: RequestOutput) -> RequestOutput:
    has_logprobs = output.outputs[0].logprobs is not None
    nothing = CompletionOutput(finish_reason="length", logprobs=[] if has_logprobs else None)
    return replace(output, outputs=[nothing])


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
            params=sampling_of(
                body,
                max_tokens=max_tokens_of(body),
                logprobs=body.logprobs,
                prompt_logprobs=num_prompt_logprobs_of(body),
            ),
            options=options_of(body, caller_of(request), body.session_id),
        )
        generation.check()

        answer = _Answer(served, body, generation, served.now())
        if body.stream:
            return EventStream(answer.events())
        return json_answer(await while_connected(request.receive, answer.whole()))

    return router
