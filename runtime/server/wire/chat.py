"""JSON of `/v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from raydix.errors import BadParameter
from raydix.runtime.api.outputs import CompletionOutput, Logprob
from raydix.runtime.api.sampling_values import MAX_SAMPLES
from raydix.runtime.server.wire.base import (
    Nothing,
    OrAbsent,
    Table,
    Text,
    Tools,
    Turns,
    WireAnswer,
    WireRequest,
    Words,
)
from raydix.runtime.server.wire.generation import GenerationFields, StreamOptions
from raydix.runtime.server.wire.logprobs import finite, token_name
from raydix.runtime.server.wire.messages import Message, ending_of_prompt
from raydix.runtime.server.wire.prompt_logprobs import PromptLogprobs
from raydix.runtime.server.wire.structured import ResponseFormat
from raydix.runtime.server.wire.tools import Tool, ToolCall, ToolCallDelta
from raydix.runtime.server.wire.usage import Usage

TemplateValue = bool | int | float | Text
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_NOT_FOR_TEMPLATES = frozenset(
    {
        *("chat_template", "conversation", "documents", "messages", "self", "tokenize", "tools"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""Arguments of transformers' `apply_chat_template` that would do more than fill in a variable."""


class TemplateFields(WireRequest):
    """What the chat template is told beside the messages, wherever a prompt is made of them."""

    tools: Tools[Tool] | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: Table[Text, TemplateValue] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """Go on with the last message, instead of beginning one."""


class ChatRequest(GenerationFields, TemplateFields):
    """A conversation to go on with."""

    messages: Turns[Message]
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    include_reasoning: bool = True
    """Whether the answer tells what was reasoned."""

    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    """Whether more calls than the first are answered."""

    response_format: ResponseFormat | None = None

    # Values that ask for nothing are taken, as clients send them.
    store: Literal[False] = False
    modalities: Words[Literal["text"]] | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    service_tier: Literal["auto", "default"] | None = None


class TopLogprob(WireAnswer):
    """One token and its natural log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None
    """The token's own, which may be part of a character; None without a tokenizer."""


class TokenLogprob(TopLogprob):
    """The token that was sampled, and the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireAnswer):
    """An entry per output token."""

    content: list[TokenLogprob]


class AnswerMessage(WireAnswer):
    """The whole answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """None where calls are all that was said."""
    reasoning_content: OrAbsent[str] = None
    reasoning: OrAbsent[str] = None
    """The same: some clients look for one name, some for the other."""
    tool_calls: OrAbsent[list[ToolCall]] = None


class Delta(WireAnswer):
    """What is new of the answer."""

    role: OrAbsent[Literal["assistant"]] = None
    content: OrAbsent[str] = None
    reasoning_content: OrAbsent[str] = None
    reasoning: OrAbsent[str] = None
    tool_calls: OrAbsent[list[ToolCallDelta]] = None


class ChatChoice(WireAnswer):
    """One of the answers to a chat."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: OrAbsent[int | str] = None
    token_ids: OrAbsent[list[int]] = None


class ChunkChoice(WireAnswer):
    """The new part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: OrAbsent[int | str] = None
    token_ids: OrAbsent[list[int]] = None


class ChatCompletion(WireAnswer):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    prompt_logprobs: OrAbsent[PromptLogprobs] = None
    usage: Usage


class ChatChunk(WireAnswer):
    """A piece of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


def max_tokens_of(request: ChatRequest) -> int | None:
    """The limit, by whichever of its two names it was given. Raises BadParameter if they differ."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        problem = f"is {new} and max_tokens is {old}; they name one limit. Set one of them."
        raise BadParameter("max_completion_tokens", problem)
    return old if new is None else new


def names_of_parameters(request: ChatRequest) -> dict[str, str]:
    """What this request calls the parameters that have another name elsewhere."""
    by_new_name = request.max_completion_tokens is not None
    limit = {"max_tokens": "max_completion_tokens"} if by_new_name else {}
    return {"logprobs": "top_logprobs", **limit}


def num_logprobs_of(request: ChatRequest) -> int | None:
    """How many of the likeliest tokens are told. Raises BadParameter if that contradicts itself."""
    if not request.logprobs:
        if request.top_logprobs:
            raise BadParameter("top_logprobs", "is set, but logprobs is not. Set it to true.")
        return None
    return request.top_logprobs or 0


def template_arguments(fields: TemplateFields) -> dict[str, Any]:
    """Variables of the chat template. Raises BadParameter for what is more than a variable."""
    wrong = sorted(_NOT_FOR_TEMPLATES & set(fields.chat_template_kwargs))
    if wrong:
        raise BadParameter(
            "chat_template_kwargs",
            f"has {', '.join(map(repr, wrong))}; expected variables of the "
            "checkpoint's template, such as 'enable_thinking'. Leave the others out.",
        )
    ending = ending_of_prompt(
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
    )
    return {**_effort_variables(fields.reasoning_effort), **fields.chat_template_kwargs, **ending}


def _effort_variables(effort: ReasoningEffort | None) -> dict[str, Any]:
    """What templates know of how much to reason: some a word, some a switch of either name."""
    if effort is None:
        return {}
    reasons = effort != "none"
    return {"reasoning_effort": effort, "enable_thinking": reasons, "thinking": reasons}


def chat_logprobs(output: CompletionOutput, num_top: int | None) -> ChatLogprobs | None:
    """Logprobs of an output's tokens, with the `num_top` likeliest of each place."""
    if output.logprobs is None or num_top is None:
        return None
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_named(token_id, entry[token_id]),
                top_logprobs=[
                    TopLogprob(**_named(other, each))
                    for other, each in entry.items()
                    if each.rank <= num_top
                ],
            )
            for token_id, entry in zip(output.token_ids, output.logprobs, strict=True)
        ]
    )


def _named(token_id: int, entry: Logprob) -> dict[str, object]:
    name = token_name(token_id, entry)
    told = None if entry.token_bytes is None else list(entry.token_bytes)
    return {"token": name, "logprob": finite(entry.logprob), "bytes": told}
