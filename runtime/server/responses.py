"""`/v1/responses`, without stored state."""

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.server.answer_reader import AnswerReader
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.chat_generation import chat_generation
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.conversation import call_choice, conversation_of
from raydix.runtime.server.errors import HttpFailure
from raydix.runtime.server.event_stream import EventStream, data_failure, named_events
from raydix.runtime.server.generation import Generation, choices_of, open_choices
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.response_writer import ResponseWriter
from raydix.runtime.server.served import REFUSALS, Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.generation import sampling_of
from raydix.runtime.server.wire.responses import (
    ResponseAnswer,
    ResponsesRequest,
    template_fields,
    tool_choice_of,
    turns_of_request,
)
from raydix.runtime.server.wire.structured import structured_of_format


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request's answer in the making."""

    served: Served
    generation: Generation
    writer: ResponseWriter

    async def whole(self) -> ResponseAnswer:
        """The answer, once it is finished."""
        async for _, output in choices_of(self.generation):
            self.writer.add(output)
        return self.writer.response()


class _Events:
    """Owns: whether the stream was opened."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer
        self._is_open = False

    def plain(self, index: int, output: RequestOutput) -> bytes:
        """The event of an output that has nothing but text, as `EventWriter.plain` says.

        Any output is plain here.
        """
        # Nothing is told of a request that the engine may still refuse.
        opening = [] if self._is_open else self._writer.opening()
        self._is_open = True
        return named_events([*opening, *self._writer.add(output)])

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output, as `EventWriter.event` says."""
        return self.plain(index, output)

    def closing(self) -> bytes:
        """The events behind the last output, as `EventWriter.closing` says."""
        return named_events(self._writer.closing())

    def failure(self, failed: HttpFailure) -> bytes:
        """The event `error`, which OpenAI's clients raise."""
        return b"event: error\n" + data_failure(failed)


def response_routes(models: ServedModels) -> APIRouter:
    """The route of responses."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/responses", response_model=ResponseAnswer, responses=REFUSALS)
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, which the request brings as a whole."""
        served = models.of(body.model)
        generation, reader = await _generation(served, body, caller_of(request))
        spoken = None if reader is None else reader.spoken()
        name = generation.request_id
        writer = ResponseWriter(body, name, served.model_name, served.now(), spoken)

        answer = _Answer(served, generation, writer)
        if body.stream:
            opening = partial(open_choices, generation)
            return EventStream(opening, _Events(writer), generation.headers)
        whole = await while_connected(request.receive, answer.whole())
        return json_answer(whole, generation.headers)

    return router


async def _generation(
    served: Served, body: ResponsesRequest, caller: Caller
) -> tuple[Generation, AnswerReader | None]:
    """What the request asks of the engine, and what reads its answer. Raises BadRequest."""
    names = {"max_tokens": "max_output_tokens"}
    asked = None if body.text is None else body.text.format
    params = sampling_of(
        body,
        max_tokens=body.max_output_tokens,
        structured=structured_of_format(asked, "text.format"),
        names=names,
    )
    template = template_fields(body)
    calls = call_choice(template.tools, tool_choice_of(body), is_parallel=body.parallel_tool_calls)
    turns = turns_of_request(body)
    conversation = conversation_of(turns, template, field="input", calls=calls)
    return await chat_generation(served, conversation, body, params, caller)
