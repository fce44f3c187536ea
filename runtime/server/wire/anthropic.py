"""JSON of `/v1/messages`, Anthropic's interface: what a client sends."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from raydix.runtime.api.sampling_values import MAX_STOP_STRINGS
from raydix.runtime.server.wire.base import (
    Items,
    Nothing,
    Parts,
    Table,
    Text,
    Tools,
    Turns,
    WireRequest,
    Words,
)
from raydix.runtime.server.wire.generation import GenerationFields
from raydix.runtime.server.wire.structured import FlatSchemaFormat


class CacheControl(WireRequest):
    """A wish to keep a prompt up to here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(WireRequest):
    """What all blocks have."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """Text of a turn."""

    type: Literal["text"]
    text: Text
    citations: Nothing | None = None


class ThinkingBlock(WireRequest):
    """What an earlier answer reasoned."""

    type: Literal["thinking"]
    thinking: Text
    signature: str = ""


class RedactedThinking(WireRequest):
    """What an earlier answer of another server reasoned in secret; it says nothing here."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Block):
    """An earlier call of a tool."""

    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: None = None


class ToolResultBlock(Block):
    """What a tool has answered."""

    type: Literal["tool_result"]
    tool_use_id: Text
    content: Text | Items[TextBlock] = ""
    is_error: bool = False
    toolset_name: None = None


# The tags are no identifiers, so that errors name no more than the place.
_TAGS = {
    "text": "a text",
    "tool_use": "a call",
    "tool_result": "a result",
    "thinking": "some thinking",
    "redacted_thinking": "some secret",
}


def _tag_of(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return _TAGS.get(kind) if isinstance(kind, str) else None


AnyBlock = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinking
TaggedBlock = Annotated[
    Annotated[TextBlock, Tag(_TAGS["text"])]
    | Annotated[ToolUseBlock, Tag(_TAGS["tool_use"])]
    | Annotated[ToolResultBlock, Tag(_TAGS["tool_result"])]
    | Annotated[ThinkingBlock, Tag(_TAGS["thinking"])]
    | Annotated[RedactedThinking, Tag(_TAGS["redacted_thinking"])],
    Discriminator(
        _tag_of,
        custom_error_type="unknown_block",
        custom_error_message=(
            f"Input should be a block of type {', '.join(map(repr, _TAGS))}; models are served "
            "without images, documents and the like"
        ),
    ),
]


class AnthropicMessage(WireRequest):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Text | Items[TaggedBlock]


class AnthropicTool(Block):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: Annotated[Text, Field(min_length=1)]
    description: Text | None = None
    input_schema: Table[str, Any]
    strict: bool | None = None

    # What clients send, and what has no meaning here.
    eager_input_streaming: bool | None = None
    """Arguments are always told as they come."""
    defer_loading: Literal[False] = False
    allowed_callers: Words[Literal["direct"]] | None = None
    input_examples: Nothing | None = None


class AnthropicToolChoice(WireRequest):
    """Which tools are to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    """The one tool, for the type `tool`."""
    disable_parallel_tool_use: bool = False


class Thinking(WireRequest):
    """Whether the model is to reason; absent, its template decides."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    """It has no effect: `max_tokens` alone bounds an answer."""
    display: Literal["summarized", "omitted"] | None = None
    """What was reasoned is told as it is, and not at all if it is to be omitted."""


class OutputConfig(WireRequest):
    """How much the model is to reason, and what its answer has to be."""

    format: FlatSchemaFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class PromptFields(WireRequest):
    """What makes a prompt: the same for an answer and for its count of tokens."""

    messages: Turns[AnthropicMessage]
    system: Text | Parts[TextBlock] | None = None
    tools: Tools[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    # What asks for nothing here, or for what Anthropic alone has.
    context_management: dict[str, Any] | None = None
    """It has no effect: the prompt is what the request brings."""
    mcp_servers: Nothing | None = None
    speed: Literal["standard"] | None = None


_SECONDS = {"5m": 300.0, "1h": 3600.0}


def asked_keep_s(fields: PromptFields) -> float | None:
    """The longest time for which a request asks to cache a part of its prompt; None: it does not.

    What follows such a part is kept, too: a prompt's pages go from its end.
    """
    blocks: list[WireRequest] = [*(fields.tools or [])]
    if not isinstance(fields.system, str):
        blocks += fields.system or []
    for message in fields.messages:
        if not isinstance(message.content, str):
            blocks += message.content
    of_blocks = [block.cache_control for block in blocks if isinstance(block, Block)]
    asked = [fields.cache_control, *of_blocks]
    return max([_SECONDS[each.ttl or "5m"] for each in asked if each is not None], default=None)


class MessagesRequest(GenerationFields, PromptFields):
    """A conversation to go on with."""

    max_tokens: int
    stop_sequences: Annotated[Items[Text], Field(max_length=MAX_STOP_STRINGS)] | None = None
    thread: dict[str, Any] | None = None
    """A conversation that the server would keep: refused by a code that clients know."""
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    inference_geo: Text | None = None


class CountRequest(PromptFields):
    """A conversation whose tokens are to be counted."""

    model: str | None = None
