"""The fields that every route which generates shares, and what they mean for the engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from raydix.errors import BadParameter
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.sampling_values import MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from raydix.runtime.api.structured_outputs import StructuredOutputs
from raydix.runtime.messages.plan import MAX_BIASED_TOKENS
from raydix.runtime.server.wire.base import Items, Table, Text, WireRequest
from raydix.runtime.server.wire.retention import CacheRetention, KvHints, RetentionHint
from raydix.runtime.server.wire.structured import StructuredFields, structured_of

MAX_CHOICES = 1024
"""The most choices of one HTTP request: prompts times samples."""

Word = Annotated[Text, Field(min_length=1, max_length=512)]
"""An id, or a salt: shorter than the engine allows, as the tenant's name is put before it."""


class StreamOptions(WireRequest):
    """What a stream tells besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """Usage so far in every chunk; otherwise `include_usage` adds one chunk at the end."""


class GenerationFields(WireRequest):
    """Sampling by vLLM's names, and how the Scheduler should treat the request.

    Ranges are checked by `SamplingParams`, which says what is wrong.
    """

    model: str | None = None
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Annotated[Table[str, float], Field(max_length=MAX_BIASED_TOKENS)] | None = None
    """The biases by token id, which JSON has as text."""
    stop: Text | Annotated[Items[Text], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[Items[int], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    structured_outputs: StructuredFields | None = None

    cache_salt: Word | None = None
    session_id: Word | None = None
    prompt_cache_key: Word | None = None
    """OpenAI's name of `session_id`."""
    retention: RetentionHint | None = None
    """What comes next of the session once the request has ended."""
    kv_hints: KvHints | None = None
    prompt_cache_retention: CacheRetention | None = None
    routing_key: Word | None = None
    deadline_s: float | None = None

    user: str | None = None
    """Names an end user; without effect, like `metadata`."""
    safety_identifier: str | None = None
    """OpenAI's newer name of `user`."""
    metadata: Table[Text, Text | None] | None = None


_SAMPLING_NAMES = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "seed", "logit_bias", "stop", "stop_token_ids", "ignore_eos"),
        *("include_stop_str_in_output", "min_tokens", "skip_special_tokens"),
    }
)


def sampling_of(
    fields: GenerationFields,
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    structured: StructuredOutputs | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> SamplingParams:
    """The sampling that a request asks for; streams bring what is new, others all at the end.

    structured: what the route's own field for that says of the answer's form.
    names: what the route calls a parameter, where that is another name than ours. Raises
    BadParameter.
    """
    asked = fields.model_dump(include=set(_SAMPLING_NAMES & fields.model_fields_set))
    kind = OutputKind.DELTA if fields.stream else OutputKind.FINAL
    try:
        return SamplingParams(
            **asked,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=structured_of(structured, fields.structured_outputs),
            output_kind=kind,
        )
    except BadParameter as error:
        theirs = names.get(error.parameter, error.parameter)
        raise BadParameter(theirs, error.problem) from error


def session_of(fields: GenerationFields) -> str | None:
    """The session, by whichever of its two names it was given.

    Raises BadParameter if they differ.
    """
    session, key = fields.session_id, fields.prompt_cache_key
    if session is not None and key is not None and session != key:
        problem = "differs from session_id; they name one session. Set one of them."
        raise BadParameter("prompt_cache_key", problem)
    return key if session is None else session


def check_stream_options(fields: GenerationFields, options: StreamOptions | None) -> StreamOptions:
    """The options of a stream. Raises BadParameter if there is no stream to have them."""
    if options is not None and not fields.stream:
        problem = "is set, but stream is not. Set stream, or leave it out."
        raise BadParameter("stream_options", problem)
    return options or StreamOptions()


def check_num_choices(num_prompts: int, num_samples: int) -> None:
    """Raise BadParameter for more choices than one request may have, or for none."""
    if not 0 < num_prompts * num_samples <= MAX_CHOICES:
        raise BadParameter(
            "n",
            f"is {num_samples} and the request has {num_prompts} prompts; expected 1 to "
            f"{MAX_CHOICES} choices in all. Send several requests.",
        )
