"""The route `/v1/chat/completions`."""

import asyncio
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
from raydix.runtime.server.answer_reader import AnswerReader
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.chat_generation import chat_generation
from raydix.runtime.server.chat_message import ChatMessage
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.conversation import call_choice, conversation_of
from raydix.runtime.server.errors import HttpFailure
from raydix.runtime.server.event_stream import DONE, EventStream, data_event, data_failure
from raydix.runtime.server.generation import Generation, choices_of, open_choices
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.plain_chunks import PlainChunks, SaidChunks
from raydix.runtime.server.served import REFUSALS, Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChunkChoice,
    Delta,
    chat_logprobs,
    max_tokens_of,
    names_of_parameters,
    num_logprobs_of,
)
from raydix.runtime.server.wire.generation import check_stream_options, sampling_of
from raydix.runtime.server.wire.prompt_logprobs import check_not_streamed, told_prompt_logprobs
from raydix.runtime.server.wire.structured import structured_of_format
from raydix.runtime.server.wire.usage import Usage, UsageMeter

_JUST_SAID = {"index", "delta"}
"""The fields of a chunk's choice that has nothing else to tell."""
_REASONING_FIELDS = ("reasoning_content", "reasoning")
_REASONING = set(_REASONING_FIELDS)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request's answer in the making."""

    served: Served
    request: ChatRequest
    generation: Generation
    reader: AnswerReader | None
    """What reads the choices; None: they are content and nothing else."""
    created: int

    @property
    def id(self) -> str:
        """The answer's name."""
        return f"chatcmpl-{self.generation.request_id}"

    async def whole(self) -> ChatCompletion:
        """All choices, once they are finished."""
        meter = UsageMeter(self.generation.num_samples)
        outputs = {}
        async for index, output in choices_of(self.generation):
            meter.add(index, output)
            outputs[index] = output
        # On a thread: there may be many logprobs, and much to read.
        return await asyncio.to_thread(self._completion, outputs, meter)

    def _completion(self, outputs: dict[int, RequestOutput], meter: UsageMeter) -> ChatCompletion:
        choices = [
            self._choice(index, output.outputs[0], meter)
            for index, output in sorted(outputs.items())
        ]
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.served.model_name,
            choices=choices,
            prompt_logprobs=told_prompt_logprobs(outputs[0].prompt_logprobs),
            usage=meter.usage(),
        )

    def _choice(self, index: int, output: CompletionOutput, meter: UsageMeter) -> ChatChoice:
        message, reason = AnswerMessage(content=output.text), output.finish_reason
        if self.reader is not None:
            said = ChatMessage(self.reader.spoken())
            said.add(output)
            message, reason = said.message(), said.spoken.finish_reason(output)
            meter.tell_reasoning(index, said.spoken.num_reasoning_tokens)
        return ChatChoice(
            index=index,
            message=message,
            logprobs=chat_logprobs(output, num_logprobs_of(self.request)),
            finish_reason=reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if self.request.return_token_ids else None,
        )

    def chunk_choice(self, index: int, new: CompletionOutput, is_first: bool) -> ChunkChoice:
        """The choice of a chunk, with what is new."""
        return ChunkChoice(
            index=index,
            delta=Delta(role="assistant" if is_first else None, content=new.text),
            logprobs=chat_logprobs(new, num_logprobs_of(self.request)),
            finish_reason=new.finish_reason,
            stop_reason=new.stop_reason,
            token_ids=new.token_ids if self.request.return_token_ids else None,
        )

    def chunk_choices(
        self, index: int, new: CompletionOutput, is_first: bool, message: ChatMessage
    ) -> list[ChunkChoice]:
        """The choices of as many chunks, where answers are read: one for each thing that is said.

        The first one has the logprobs and the token ids; the end has one of its own.
        """
        deltas = message.add(new)
        is_silent = not (deltas or is_first or new.is_finished)
        if is_first:
            begin = deltas.pop(0) if deltas else Delta()
            deltas.insert(0, begin.model_copy(update={"role": "assistant"}))
        if new.is_finished or not deltas:
            deltas.append(Delta())
        told = [ChunkChoice(index=index, delta=each) for each in deltas]
        if self.request.return_token_ids or new.logprobs is not None:
            logprobs = chat_logprobs(new, num_logprobs_of(self.request))
            ids = new.token_ids if self.request.return_token_ids else None
            told[0] = told[0].model_copy(update={"logprobs": logprobs, "token_ids": ids})
        elif is_silent:
            return []
        if new.is_finished:
            end = {
                "finish_reason": message.spoken.finish_reason(new),
                "stop_reason": new.stop_reason,
            }
            told[-1] = told[-1].model_copy(update=end)
        return told

    def chunk(self, choices: list[ChunkChoice], usage: Usage | None) -> ChatChunk:
        """A piece of the answer."""
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.served.model_name,
            choices=choices,
            usage=usage,
        )


class _Events:
    """Owns: how much of a stream was told; the first piece of each choice tells the role."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._options = check_stream_options(answer.request, answer.request.stream_options)
        self._meter = UsageMeter(answer.generation.num_samples)
        self._plain_chunks = PlainChunks(self._plain_chunk)
        self._said_chunks = SaidChunks(self._said_chunk)
        self._begun: set[int] = set()
        self._messages: dict[int, ChatMessage] = {}

    def plain(self, index: int, output: RequestOutput) -> bytes | None:
        """The event of an output that has nothing but text, as `EventWriter.plain` says."""
        if index not in self._begun:
            return None
        if self._answer.reader is not None:
            return self._told(index, output)
        if self._options.continuous_usage_stats:
            return None
        new = output.outputs[0]
        event = self._plain_chunks.event(index, new)
        if event is not None:
            self._meter.add_tokens(new)
        return event

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output, as `EventWriter.event` says."""
        return self._told(index, output)

    def _told(self, index: int, output: RequestOutput) -> bytes:
        self._meter.add(index, output)
        choices = self._choices(index, output.outputs[0], is_first=index not in self._begun)
        self._begun.add(index)
        usage = self._meter.usage() if self._options.continuous_usage_stats else None
        return b"".join([self._chunk_event(each, usage) for each in choices])

    def _chunk_event(self, choice: ChunkChoice, usage: Usage | None) -> bytes:
        if usage is None and choice.model_fields_set == _JUST_SAID:
            delta = choice.delta
            if delta.model_fields_set == {"content"} and delta.content is not None:
                return self._said_chunks.event(choice.index, ("content",), delta.content)
            if delta.model_fields_set == _REASONING and delta.reasoning is not None:
                return self._said_chunks.event(choice.index, _REASONING_FIELDS, delta.reasoning)
        return data_event(self._answer.chunk([choice], usage))

    def _choices(self, index: int, new: CompletionOutput, *, is_first: bool) -> list[ChunkChoice]:
        if self._answer.reader is None:
            return [self._answer.chunk_choice(index, new, is_first)]
        if is_first:
            self._messages[index] = ChatMessage(self._answer.reader.spoken())
        message = self._messages[index]
        choices = self._answer.chunk_choices(index, new, is_first, message)
        self._meter.tell_reasoning(index, message.spoken.num_reasoning_tokens)
        return choices

    def closing(self) -> bytes:
        """The events behind the last output, as `EventWriter.closing` says."""
        if not self._options.include_usage:
            return DONE
        return data_event(self._answer.chunk([], self._meter.usage())) + DONE

    def failure(self, failed: HttpFailure) -> bytes:
        """The event of an error after the first event, as `EventWriter.failure` says."""
        return data_failure(failed)

    def _said_chunk(self, index: int, fields: dict[str, str]) -> ChatChunk:
        return self._answer.chunk([ChunkChoice(index=index, delta=Delta(**fields))], None)

    def _plain_chunk(self, index: int, new: CompletionOutput) -> ChatChunk:
        return self._answer.chunk([self._answer.chunk_choice(index, new, is_first=False)], None)


def chat_routes(models: ServedModels) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions", response_model=ChatCompletion, responses=REFUSALS)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        served = models.of(body.model)
        check_stream_options(body, body.stream_options)
        generation, reader = await _generation(served, body, caller_of(request))

        answer = _Answer(served, body, generation, reader, served.now())
        if body.stream:
            opening = partial(open_choices, generation)
            return EventStream(opening, _Events(answer), generation.headers)
        whole = await while_connected(request.receive, answer.whole())
        return json_answer(whole, generation.headers)

    return router


async def _generation(
    served: Served, body: ChatRequest, caller: Caller
) -> tuple[Generation, AnswerReader | None]:
    """What the request asks of the engine, and what reads its answers. Raises BadRequest."""
    num_prompt_logprobs = body.prompt_logprobs
    check_not_streamed(
        "prompt_logprobs", is_asked=num_prompt_logprobs is not None, is_streamed=body.stream
    )
    params = sampling_of(
        body,
        max_tokens=max_tokens_of(body),
        logprobs=num_logprobs_of(body),
        prompt_logprobs=num_prompt_logprobs,
        structured=structured_of_format(body.response_format, "response_format"),
        names=names_of_parameters(body),
    )
    calls = call_choice(body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls)
    conversation = conversation_of(body.messages, body, field="messages", calls=calls)
    return await chat_generation(
        served,
        conversation,
        body,
        params,
        caller,
        num_samples=body.n,
        tells_reasoning=body.include_reasoning,
    )
