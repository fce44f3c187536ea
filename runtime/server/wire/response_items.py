"""Items of `/v1/responses`: of the conversation that a request brings, and of an answer."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from raydix.runtime.server.wire.base import Items, Nothing, Text, Tools, WireAnswer, WireRequest
from raydix.runtime.server.wire.messages import TextPart

Status = Literal["in_progress", "completed", "incomplete"]


class InputPart(TextPart):
    """Text; what an earlier answer said beside its text is taken and left aside."""

    annotations: Nothing | None = None
    logprobs: Nothing | None = None


class InputItem(WireRequest):
    """What all items have: an earlier answer told it, and it asks for nothing."""

    id: str | None = None
    status: Status | None = None


class InputMessage(InputItem):
    """One turn, as a client writes it or as an earlier answer told it."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Items[InputPart]


class InputCall(InputItem):
    """An earlier call of a function."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text


class InputResult(InputItem):
    """What a function has answered."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Text | Items[InputPart]


class ReasoningPart(WireRequest):
    """A part of what was reasoned."""

    type: Literal["reasoning_text", "text"]
    text: Text


class SummaryPart(WireRequest):
    """A part of a summary, which other servers tell in place of what was reasoned."""

    type: Literal["summary_text"]
    text: Text


class InputReasoning(InputItem):
    """What an earlier answer reasoned; without `content` it says nothing here."""

    type: Literal["reasoning"]
    summary: Items[SummaryPart] = Field(default_factory=list)
    content: Items[ReasoningPart] | None = None
    encrypted_content: str | None = None


# The tags are no identifiers, so that errors name no more than the place.
_TAGS = {
    "message": "a message",
    "function_call": "a call",
    "function_call_output": "a result",
    "reasoning": "some reasoning",
}


def _tag_of(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    return _TAGS.get(kind) if isinstance(kind, str) else None


AnyItem = InputMessage | InputCall | InputResult | InputReasoning
TaggedItem = Annotated[
    Annotated[InputMessage, Tag(_TAGS["message"])]
    | Annotated[InputCall, Tag(_TAGS["function_call"])]
    | Annotated[InputResult, Tag(_TAGS["function_call_output"])]
    | Annotated[InputReasoning, Tag(_TAGS["reasoning"])],
    Discriminator(
        _tag_of,
        custom_error_type="unknown_item",
        custom_error_message=f"Input should be an item of type {', '.join(map(repr, _TAGS))}",
    ),
]


class OutputText(WireAnswer):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(WireAnswer):
    """What was said, whole or under way."""

    type: Literal["message"] = "message"
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningText(WireAnswer):
    """The text that was reasoned."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(WireAnswer):
    """What was reasoned, whole or under way."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: Status
    summary: list[Any] = Field(default_factory=list)
    content: list[ReasoningText]


class OutputCall(WireAnswer):
    """A call of a function, whole or under way."""

    type: Literal["function_call"] = "function_call"
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputPart = OutputText | ReasoningText
OutputItem = OutputMessage | OutputReasoning | OutputCall


class ResponseTool(WireRequest):
    """A function that the client can call."""

    type: Literal["function"]
    name: Annotated[Text, Field(min_length=1)]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments."""
    strict: bool | None = None


class NamedTool(WireRequest):
    """The one function that is to be called."""

    type: Literal["function"]
    name: Text


class AllowedTools(WireRequest):
    """The functions of which one may be called, or must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Tools[NamedTool]
