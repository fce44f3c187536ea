"""`/v1/responses`, without stored state."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.errors import HttpFailure, refused_as
from raydix.runtime.server.event_stream import EventStream, data_failure, named_event
from raydix.runtime.server.generation import Generation, choices_of, open_choices, options_of
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.response_writer import ResponseWriter
from raydix.runtime.server.served import REFUSALS, Served, caller_of, new_request_id
from raydix.runtime.server.wire.generation import sampling_of
from raydix.runtime.server.wire.messages import template_messages
from raydix.runtime.server.wire.responses import (
    ResponseAnswer,
    ResponseEvent,
    ResponsesRequest,
    conversation_of,
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request's answer in the making."""

    served: Served
    generation: Generation
    writer: ResponseWriter

    async def whole(self) -> ResponseAnswer:
        """The answer, once it is finished."""
        async for _, output in choices_of(self.served.engine, self.generation):
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
        return _joined([*opening, *self._writer.add(output)])

    async def event(self, index: int, output: RequestOutput) -> bytes:
        """The events of any other output, as `EventWriter.event` says."""
        return self.plain(index, output)

    def closing(self) -> bytes:
        """The events behind the last output, as `EventWriter.closing` says."""
        return _joined(self._writer.closing())

    def failure(self, failed: HttpFailure) -> bytes:
        """The event `error`, which OpenAI's clients raise."""
        return b"event: error\n" + data_failure(failed)


def _joined(events: Iterable[ResponseEvent]) -> bytes:
    return b"".join([named_event(event.type, event) for event in events])


def response_routes(served: Served) -> APIRouter:
    """The route of responses."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/responses", response_model=ResponseAnswer, responses=REFUSALS)
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, which the request brings as a whole."""
        served.check_model(body.model)
        generation = await _generation(served, body, caller_of(request))
        writer = ResponseWriter(body, generation.request_id, served.model_name, served.now())

        answer = _Answer(served, generation, writer)
        if body.stream:
            opening = partial(open_choices, served.engine, generation)
            return EventStream(opening, _Events(writer))
        return json_answer(await while_connected(request.receive, answer.whole()))

    return router


async def _generation(served: Served, body: ResponsesRequest, caller: Caller) -> Generation:
    """The generation that the request asks of the engine. Raises BadRequest."""
    names = {"max_tokens": "max_output_tokens"}
    params = sampling_of(body, max_tokens=body.max_output_tokens, names=names)
    options = options_of(body, caller)
    messages = template_messages(conversation_of(body))
    with refused_as("input"):
        desk = (await served.engine.connected()).texts
        token_ids = await desk.encode_chat(messages, {}, caller.tenant)
    generation = Generation(
        request_id=new_request_id(),
        prompts=(token_ids,),
        prompt_field="input",
        num_samples=1,
        params=params,
        options=options,
        tenant=caller.tenant,
    )
    generation.check()
    return generation
