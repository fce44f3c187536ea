"""JSON of `/v1/completions`."""

from itertools import accumulate
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from raydix.errors import BadParameter
from raydix.runtime.api.outputs import CompletionOutput, Logprob
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.sampling_values import MAX_SAMPLES
from raydix.runtime.server.wire.base import Items, OrAbsent, Text, WireAnswer
from raydix.runtime.server.wire.generation import (
    MAX_CHOICES,
    GenerationFields,
    StreamOptions,
)
from raydix.runtime.server.wire.logprobs import finite, token_name, token_of_id
from raydix.runtime.server.wire.prompt_logprobs import (
    Echo,
    PromptLogprobs,
    check_not_streamed,
)
from raydix.runtime.server.wire.usage import Usage

DEFAULT_MAX_TOKENS = 16
"""The default length of an answer, as OpenAI has it for this route alone."""

T = TypeVar("T")
Prompts = Annotated[Items[T], Field(max_length=MAX_CHOICES)]


def _kind_of_prompt(prompt: object) -> str:
    """Which of the shapes it has, so that what is wrong is told of that one alone."""
    if not isinstance(prompt, list):
        return "(text)"
    first = prompt[0] if prompt else 0
    return (
        "(texts)" if isinstance(first, str) else "(lists)" if isinstance(first, list) else "(ids)"
    )


PromptField = Annotated[
    Annotated[Text, Tag("(text)")]
    | Annotated[Prompts[Text], Tag("(texts)")]
    | Annotated[Items[int], Tag("(ids)")]
    | Annotated[Prompts[Items[int]], Tag("(lists)")],
    Discriminator(_kind_of_prompt),
]


def _none_if_false(value: object) -> object:
    return None if value is False else value


class CompletionRequest(GenerationFields):
    """One prompt or several: text, or token ids."""

    prompt: PromptField
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    logprobs: Annotated[int | None, BeforeValidator(_none_if_false)] = None
    """False, which chats have for none, is none here, too."""
    prompt_logprobs: int | None = None
    echo: bool = False
    """Put the prompt before the output, with `logprobs` also its logprobs; `max_tokens` may be 0
    then."""
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    best_of: Literal[1] = 1
    """A value that asks for nothing is taken, as clients send it."""


class CompletionLogprobs(WireAnswer):
    """Columns, one entry per token; of an echoed prompt's first one nothing is told.

    `tokens` are the parts of the text which begin at `text_offset`, and joined they are the text. A
    token that ends within a character has an empty one, and the token that completes the character
    has all of it. What is not in the text, such as a token that ended it, has an empty one, too.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(WireAnswer):
    """The output of one sample of one prompt, or the new part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: OrAbsent[int | str] = None
    token_ids: OrAbsent[list[int]] = None
    prompt_logprobs: OrAbsent[PromptLogprobs] = None


class Completion(WireAnswer):
    """The answer; a stream brings it in chunks of the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts, each as text or as token ids. Raises BadParameter if there is none."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        problem = "is an empty list; expected text, token ids or a list of either."
        raise BadParameter("prompt", problem)
    if isinstance(prompt[0], int):
        return [{"prompt_token_ids": prompt}]
    return [each if isinstance(each, str) else {"prompt_token_ids": each} for each in prompt]


def num_prompt_logprobs_of(request: CompletionRequest) -> int | None:
    """What is asked of the prompt, to be told by itself or by an echo.

    Raises BadParameter, also of a stream.
    """
    own, by_echo = request.prompt_logprobs, request.logprobs if request.echo else None
    is_streamed = request.stream
    check_not_streamed("prompt_logprobs", is_asked=own is not None, is_streamed=is_streamed)
    check_not_streamed(
        "echo", "with logprobs", is_asked=by_echo is not None, is_streamed=is_streamed
    )

    if own is not None and by_echo is not None and own != by_echo:
        raise BadParameter(
            "prompt_logprobs",
            f"is {own} and logprobs {by_echo}, which echo asks for the prompt, too. Set one number "
            "for both.",
        )
    return by_echo if own is None else own


def check_echo(request: CompletionRequest, *, has_tokenizer: bool) -> None:
    """Raise BadParameter for an echo whose text nobody here knows."""
    if request.echo and not has_tokenizer:
        raise BadParameter(
            "echo",
            "needs a tokenizer, and the checkpoint has none that this process can read. Leave echo "
            "out, or put the tokenizer's files into the checkpoint folder on this host.",
        )


def max_tokens_of(request: CompletionRequest) -> int:
    """The number of tokens to generate: 1 of an echo alone, too, which is not shown."""
    return 1 if request.echo and request.max_tokens == 0 else request.max_tokens


def completion_choice(
    index: int, output: CompletionOutput, with_token_ids: bool, echo: Echo | None = None
) -> CompletionChoice:
    """One choice, or what is new of it."""
    return CompletionChoice(
        index=index,
        text=output.text if echo is None else echo.text + output.text,
        logprobs=_logprobs(output, echo),
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        token_ids=output.token_ids if with_token_ids else None,
    )


def _logprobs(output: CompletionOutput, echo: Echo | None) -> CompletionLogprobs | None:
    if output.logprobs is None:
        return None
    tokens = output.token_texts()
    if tokens is None:
        tokens = [token_of_id(each) for each in output.token_ids]
    offsets = output.text_offsets or [0] * len(tokens)
    entries: list[dict[int, Logprob] | None] = [*output.logprobs]
    token_ids = output.token_ids
    if echo is not None and echo.logprobs is not None:
        starts = list(accumulate(map(len, echo.token_texts), initial=0))
        offsets = [*starts[:-1], *(starts[-1] + each for each in offsets)]
        tokens = [*echo.token_texts, *tokens]
        entries = [*echo.logprobs, *entries]
        token_ids = [*echo.token_ids, *token_ids]

    places = list(zip(token_ids, tokens, entries, strict=True))
    return CompletionLogprobs(
        tokens=tokens,
        # Only the first token of a prompt lacks an entry, and only an echo has that.
        token_logprobs=[
            None if entry is None else finite(entry[token_id].logprob)
            for token_id, _, entry in places
        ],
        top_logprobs=[
            None if entry is None else _by_name(entry, token_id, token)
            for token_id, token, entry in places
        ],
        text_offset=offsets,
    )


def _by_name(entry: dict[int, Logprob], sampled_id: int, text: str) -> dict[str, float]:
    """The logprobs by text; a token whose text an earlier one has goes by its id.

    The sampled one goes by its part of the output's text, as among `tokens`.
    """
    named: dict[str, float] = {}
    for token_id, each in entry.items():
        name = text if token_id == sampled_id else token_name(token_id, each)
        named[token_of_id(token_id) if name in named else name] = finite(each.logprob)
    return named
