"""JSON of `/v1/responses`: nothing is stored, so each request brings the whole conversation."""

from typing import Any, Literal

from pydantic import Field

from raydix.runtime.server.wire.base import (
    Items,
    Nothing,
    OrAbsent,
    Text,
    Turns,
    WireAnswer,
    WireRequest,
)
from raydix.runtime.server.wire.chat import TextFormat
from raydix.runtime.server.wire.generation import GenerationFields
from raydix.runtime.server.wire.messages import Message, TextPart
from raydix.runtime.server.wire.usage import ResponseUsage


class InputPart(TextPart):
    """Text; what an earlier answer said beside its text is taken and left aside."""

    annotations: Nothing | None = None
    logprobs: Nothing | None = None


class InputMessage(WireRequest):
    """One turn, as a client writes it or as an earlier answer told it."""

    type: Literal["message"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Items[InputPart]


class TextOptions(WireRequest):
    """How the answer's text is to be formed."""

    format: TextFormat | None = None


class ResponsesRequest(GenerationFields):
    """A conversation to go on with."""

    input: Text | Turns[InputMessage]
    instructions: Text | None = None
    max_output_tokens: int | None = None

    # Values that ask for nothing are taken, as clients send them.
    store: Literal[False] = False
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    text: TextOptions | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    include: Nothing | None = None
    service_tier: Literal["auto", "default"] | None = None


class OutputText(WireAnswer):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(WireAnswer):
    """The answer, whole or under way."""

    type: Literal["message"] = "message"
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class IncompleteDetails(WireAnswer):
    """Why an answer ended before its end."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseAnswer(WireAnswer):
    """A response at one moment."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool = False
    previous_response_id: None = None
    store: Literal[False] = False
    temperature: float
    text: dict[str, Any] = Field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Literal["none", "auto"] = "none"
    tools: list[Any] = Field(default_factory=list)
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class ResponseEvent(WireAnswer):
    """A piece of a stream; its type tells which of the fields it has."""

    type: str
    sequence_number: int
    response: OrAbsent[ResponseAnswer] = None
    item_id: OrAbsent[str] = None
    output_index: OrAbsent[int] = None
    content_index: OrAbsent[int] = None
    item: OrAbsent[OutputMessage] = None
    part: OrAbsent[OutputText] = None
    delta: OrAbsent[str] = None
    text: OrAbsent[str] = None
    logprobs: OrAbsent[list[Any]] = None


def conversation_of(request: ResponsesRequest) -> list[Message]:
    """The turns of a request, its instructions first."""
    turns = []
    if request.instructions is not None:
        turns.append(Message(role="system", content=request.instructions))
    if isinstance(request.input, str):
        return [*turns, Message(role="user", content=request.input)]
    return [*turns, *(_message(each) for each in request.input)]


def _message(turn: InputMessage) -> Message:
    if isinstance(turn.content, str):
        return Message(role=turn.role, content=turn.content)
    parts = [TextPart(type="text", text=part.text) for part in turn.content]
    return Message(role=turn.role, content=parts)
