"""JSON of `/v1/completions`."""

from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field

from raydix.errors import BadRequest
from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.server.wire.base import OrAbsent, Text, WireAnswer
from raydix.runtime.server.wire.generation import MAX_SAMPLES, GenerationFields, StreamOptions
from raydix.runtime.server.wire.logprobs import finite, token_name
from raydix.runtime.server.wire.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""As OpenAI has it for this route alone."""


class CompletionRequest(GenerationFields):
    """One prompt or several: text, or token ids."""

    prompt: Text | list[Text] | list[int] | list[list[int]]
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    logprobs: int | None = None
    echo: Literal[False] = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False


class CompletionLogprobs(WireAnswer):
    """Columns, one entry per output token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(WireAnswer):
    """The output of one sample of one prompt, or the new part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: OrAbsent[int | str] = None
    token_ids: OrAbsent[list[int]] = None


class Completion(WireAnswer):
    """The answer; a stream brings it in chunks of the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts, each as text or as token ids. Raises BadRequest if there is none."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt is an empty list; expected text, token ids or a list of either.")
    if isinstance(prompt[0], int):
        return [{"prompt_token_ids": prompt}]
    return [each if isinstance(each, str) else {"prompt_token_ids": each} for each in prompt]


def completion_choice(
    index: int, output: CompletionOutput, text_offset: int, with_token_ids: bool
) -> CompletionChoice:
    """One choice; `text_offset`: characters of it that were sent before."""
    return CompletionChoice(
        index=index,
        text=output.text,
        logprobs=_logprobs(output, text_offset),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        token_ids=output.token_ids if with_token_ids else None,
    )


def _logprobs(output: CompletionOutput, text_offset: int) -> CompletionLogprobs | None:
    if output.logprobs is None:
        return None
    names = [
        token_name(token_id, entry[token_id])
        for token_id, entry in zip(output.token_ids, output.logprobs, strict=True)
    ]

    # Where each token begins, as far as the names of the tokens before it tell.
    offsets = list(accumulate(map(len, names), initial=text_offset))[:-1]
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[
            finite(entry[token_id].logprob)
            for token_id, entry in zip(output.token_ids, output.logprobs, strict=True)
        ],
        top_logprobs=[
            {token_name(other, each): finite(each.logprob) for other, each in entry.items()}
            for entry in output.logprobs
        ],
        text_offset=offsets,
    )
