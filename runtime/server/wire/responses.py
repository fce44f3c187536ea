"""JSON of `/v1/responses`: nothing is stored, so each request brings the whole conversation."""

from typing import Any, Literal

from pydantic import Field

from raydix.runtime.server.wire.base import (
    NamedEvent,
    OrAbsent,
    Text,
    Tools,
    Turns,
    WireAnswer,
    WireRequest,
    Words,
)
from raydix.runtime.server.wire.chat import ReasoningEffort, TemplateFields
from raydix.runtime.server.wire.generation import GenerationFields
from raydix.runtime.server.wire.messages import Message
from raydix.runtime.server.wire.response_items import (
    AllowedTools,
    NamedTool,
    OutputItem,
    OutputPart,
    ResponseTool,
    TaggedItem,
)
from raydix.runtime.server.wire.response_turns import turns_of
from raydix.runtime.server.wire.structured import FlatFormat
from raydix.runtime.server.wire.tools import FunctionDefinition, Tool
from raydix.runtime.server.wire.usage import ResponseUsage


class TextOptions(WireRequest):
    """How the answer's text is to be formed."""

    format: FlatFormat | None = None


class ReasoningOptions(WireRequest):
    """How much the model is to reason."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """It has no effect: what was reasoned is told as it is."""


class ResponsesRequest(GenerationFields):
    """A conversation to go on with."""

    input: Text | Turns[TaggedItem]
    instructions: Text | None = None
    max_output_tokens: int | None = None
    reasoning: ReasoningOptions | None = None
    tools: Tools[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool = True
    """Whether more calls than the first are answered."""

    # Values that ask for nothing are taken, as clients send them.
    store: Literal[False] = False
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    text: TextOptions | None = None
    include: Words[Literal["reasoning.encrypted_content"]] | None = None
    """What was reasoned comes back in the clear."""
    service_tier: Literal["auto", "default"] | None = None


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
    metadata: dict[str, str | None] = Field(default_factory=dict)
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, str | None]
    store: Literal[False] = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | NamedTool | AllowedTools
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class ResponseEvent(NamedEvent):
    """A piece of a stream."""

    sequence_number: int
    response: OrAbsent[ResponseAnswer] = None
    item_id: OrAbsent[str] = None
    output_index: OrAbsent[int] = None
    content_index: OrAbsent[int] = None
    item: OrAbsent[OutputItem] = None
    part: OrAbsent[OutputPart] = None
    delta: OrAbsent[str] = None
    text: OrAbsent[str] = None
    name: OrAbsent[str] = None
    arguments: OrAbsent[str] = None
    logprobs: OrAbsent[list[Any]] = None


def turns_of_request(request: ResponsesRequest) -> list[Message]:
    """The turns of a request, its instructions first."""
    turns = []
    if request.instructions is not None:
        turns.append(Message(role="system", content=request.instructions))
    if isinstance(request.input, str):
        return [*turns, Message(role="user", content=request.input)]
    return [*turns, *turns_of(request.input)]


def template_fields(request: ResponsesRequest) -> TemplateFields:
    """What the chat template is told of a request."""
    tools = [
        Tool(
            type="function",
            # What is not given must stay so: templates write each field that there is.
            function=FunctionDefinition(**each.model_dump(exclude={"type"}, exclude_unset=True)),
        )
        for each in request.tools or ()
    ]
    effort = None if request.reasoning is None else request.reasoning.effort
    return TemplateFields(tools=tools, reasoning_effort=effort)


def tool_choice_of(request: ResponsesRequest) -> str | dict[str, Any] | None:
    """The choice of a tool as that of a chat."""
    match request.tool_choice:
        case NamedTool(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedTools(mode=mode, tools=tools):
            allowed = [each.model_dump() for each in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        case choice:
            return choice
