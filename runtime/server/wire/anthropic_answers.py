"""JSON of `/v1/messages`: what a client receives."""

from typing import Any, Literal

from raydix.runtime.server.wire.base import NamedEvent, OrAbsent, WireAnswer
from raydix.runtime.server.wire.usage import Usage

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_NEVER_KEPT = frozenset(
    {"computed:last_token", "computed:partial_page", "computed:caching_off"},
)
"""Tokens of a prompt that were computed and are in no page that later requests find."""


class AnswerText(WireAnswer):
    """Text for the user."""

    type: Literal["text"] = "text"
    text: str
    citations: None = None


class AnswerThinking(WireAnswer):
    """What was reasoned; nothing is signed."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class AnswerToolUse(WireAnswer):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class ThinkingDetails(WireAnswer):
    """How many tokens of the output were reasoning."""

    thinking_tokens: int


class AnthropicUsage(WireAnswer):
    """The first three sum to the whole prompt."""

    input_tokens: int
    """Computed, and not in the cache now: what fills no page, and the last token."""
    cache_creation_input_tokens: int
    """Computed, and in the cache from now on."""
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessageAnswer(WireAnswer):
    """The answer, whole or at its beginning."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class Delta(WireAnswer):
    """What is new of a block."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"]
    text: OrAbsent[str] = None
    thinking: OrAbsent[str] = None
    signature: OrAbsent[str] = None
    partial_json: OrAbsent[str] = None


class MessageEnd(WireAnswer):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageEvent(NamedEvent):
    """A piece of a stream."""

    message: OrAbsent[MessageAnswer] = None
    index: OrAbsent[int] = None
    content_block: OrAbsent[AnswerBlock] = None
    delta: OrAbsent[Delta | MessageEnd] = None
    usage: OrAbsent[AnthropicUsage] = None


class TokenCount(WireAnswer):
    """The tokens of a prompt."""

    input_tokens: int


def anthropic_usage(usage: Usage) -> AnthropicUsage:
    """The usage by Anthropic's names."""
    details = usage.prompt_tokens_details
    num_kept = sum(
        count
        for source, count in details.cached_tokens_by_source.items()
        if source.startswith("computed:") and source not in _NEVER_KEPT
    )
    num_read = details.cached_tokens
    reasoning = usage.completion_tokens_details.reasoning_tokens
    return AnthropicUsage(
        input_tokens=usage.prompt_tokens - num_read - num_kept,
        cache_creation_input_tokens=num_kept,
        cache_read_input_tokens=num_read,
        output_tokens=usage.completion_tokens,
        output_tokens_details=ThinkingDetails(thinking_tokens=reasoning),
    )
