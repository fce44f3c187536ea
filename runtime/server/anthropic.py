"""Anthropic's routes: `/v1/messages` and `/v1/messages/count_tokens`."""

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.errors import BadParameter
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.server.answer_reader import AnswerReader
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.chat_generation import chat_generation
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.conversation import Conversation, call_choice, conversation_of
from raydix.runtime.server.error_shapes import ANTHROPIC_PATH
from raydix.runtime.server.errors import HttpFailure, RequestRefused, failure
from raydix.runtime.server.event_stream import EventStream, named_events
from raydix.runtime.server.generation import Generation, choices_of, open_choices
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.message_writer import MessageWriter
from raydix.runtime.server.served import Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.anthropic import CountRequest, MessagesRequest, PromptFields
from raydix.runtime.server.wire.anthropic_answers import MessageAnswer, TokenCount
from raydix.runtime.server.wire.anthropic_turns import (
    template_fields_of,
    tool_choice_of_fields,
    turns_of_fields,
)
from raydix.runtime.server.wire.errors import AnthropicError
from raydix.runtime.server.wire.generation import sampling_of
from raydix.runtime.server.wire.structured import structured_of_format

_REFUSALS: dict[int | str, dict[str, object]] = {
    status: {"model": AnthropicError} for status in (400, 401, 403, 404, 408, 413, 429, 503)
}


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request's answer in the making."""

    served: Served
    generation: Generation
    writer: MessageWriter

    async def whole(self) -> MessageAnswer:
        """The answer, once it is finished."""
        async for _, output in choices_of(self.generation):
            self.writer.add(output)
        return self.writer.message()


class _Events:
    """Writes the stream of one message."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def plain(self, index: int, output: RequestOutput) -> bytes:
        """The event of an output that has nothing but text, as `EventWriter.plain` says.

        Any output is plain here.
        """
        return named_events(self._writer.add(output))

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output, as `EventWriter.event` says."""
        return self.plain(index, output)

    def closing(self) -> bytes:
        """The events behind the last output, as `EventWriter.closing` says."""
        return named_events(self._writer.closing())

    def failure(self, failed: HttpFailure) -> bytes:
        """The event `error`, which Anthropic's clients raise."""
        return b"event: error\ndata: " + failed.body(ANTHROPIC_PATH) + b"\n\n"


def anthropic_routes(models: ServedModels) -> APIRouter:
    """The routes of Anthropic's interface."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/messages", response_model=MessageAnswer, responses=_REFUSALS)
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation."""
        served = models.of(body.model)
        generation, reader = await _generation(served, body, caller_of(request))
        spoken = None if reader is None else reader.spoken()
        writer = MessageWriter(generation.request_id, served.model_name, spoken)

        answer = _Answer(served, generation, writer)
        if body.stream:
            opening = partial(open_choices, generation)
            return EventStream(opening, _Events(writer), generation.headers)
        whole = await while_connected(request.receive, answer.whole())
        return json_answer(whole, generation.headers)

    @router.post("/v1/messages/count_tokens", response_model=TokenCount, responses=_REFUSALS)
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        """Count the tokens of a conversation."""
        served = models.of(body.model)
        conversation = _conversation(body)
        desk = (await served.engine.connected()).texts
        counting = conversation.token_ids(desk, caller_of(request).tenant)
        token_ids = await while_connected(request.receive, counting)
        return json_answer(TokenCount(input_tokens=len(token_ids)))

    return router


def _conversation(fields: PromptFields) -> Conversation:
    """The conversation of a request. Raises BadParameter."""
    template = template_fields_of(fields)
    is_parallel = fields.tool_choice is None or not fields.tool_choice.disable_parallel_tool_use
    calls = call_choice(template.tools, tool_choice_of_fields(fields), is_parallel=is_parallel)
    return conversation_of(turns_of_fields(fields), template, field="messages", calls=calls)


async def _generation(
    served: Served, body: MessagesRequest, caller: Caller
) -> tuple[Generation, AnswerReader | None]:
    """What the request asks of the engine, and what reads its answer. Raises BadRequest."""
    if body.thread is not None:
        # By this code Anthropic's clients know to send the whole conversation instead.
        text = "thread is not served, as nothing is stored. Send all messages, and no thread."
        code = "thread_unsupported_request"
        raise RequestRefused(failure(400, text, "invalid_request_error", code=code))
    if body.stop is not None:
        raise BadParameter("stop", "is no field of messages. Set stop_sequences instead.")
    asked = body
    if body.stop_sequences:
        asked = body.model_copy(update={"stop": body.stop_sequences})
    form = None if body.output_config is None else body.output_config.format
    params = sampling_of(
        asked,
        max_tokens=body.max_tokens,
        structured=structured_of_format(form, "output_config.format"),
        names={"stop": "stop_sequences"},
    )
    is_told = body.thinking is None or body.thinking.display != "omitted"
    return await chat_generation(
        served, _conversation(body), body, params, caller, tells_reasoning=is_told
    )
