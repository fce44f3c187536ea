"""Which requests are refused on arrival, and why.

What a client sends may be anything of the right types.
"""

import math
from collections.abc import Iterable

import numpy as np

from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import (
    ExpectRequest,
    FailureKind,
    PrefetchPrompt,
    RequestFailure,
    SubmitRequest,
)
from raydix.runtime.messages.grammar import MAX_GRAMMAR_BYTES
from raydix.runtime.messages.plan import (
    MAX_BIAS,
    MAX_BIASED_TOKENS,
    MAX_PROMPT_LOGPROB_BYTES,
    DeviceSampling,
    prompt_logprob_bytes,
)
from raydix.runtime.messages.retention import Retention
from raydix.runtime.scheduler.settings import SchedulerSettings

_Wrong = tuple[str, str]
"""A parameter, by the name that the caller knows, and what is wrong with it."""

_MAX_SEED = 2**63 - 1
_MAX_PRIORITY = 2**31 - 1
_MAX_COUNT = 2**31 - 1
"""The largest count of tokens that is taken: counts are kept in int32 columns."""


def refuse_as_closing() -> RequestFailure:
    """Refuse a request because the engine is about to stop."""
    text = "the engine is shutting down and takes no new requests."
    return RequestFailure(kind=FailureKind.SHUTTING_DOWN, message=text)


def refuse_request(message: SubmitRequest, settings: SchedulerSettings) -> RequestFailure | None:
    """Why a request cannot be served whatever else goes on; None if it can."""
    num_prompt = len(message.token_ids)
    if num_prompt == 0:
        return _bad("the prompt has no tokens; expected at least one.")

    if message.max_tokens is not None and message.max_tokens < 1:
        problem = (
            f"is {message.max_tokens}; expected at least 1, or None for the rest of the context."
        )
        return _bad_parameter("max_tokens", problem)

    if num_prompt >= settings.max_model_len:
        text = (
            f"the prompt has {num_prompt} tokens; expected at most {settings.max_model_len - 1}, "
            "which leaves room for one generated token. Shorten it; what bounds the context are "
            "model.max_model_len, the model and the pages of cache.l1."
        )
        return RequestFailure(kind=FailureKind.PROMPT_TOO_LONG, message=text)

    wrong_prompt = _wrong_tokens("the prompt", message.token_ids, settings)
    if wrong_prompt is not None:
        return _bad(wrong_prompt)
    wrong = (
        _wrong_limits(message)
        or _wrong_output(message, settings)
        or _wrong_grammar(message)
        or _wrong_sampling(message, settings)
        or _wrong_amount(message, settings)
    )
    return None if wrong is None else _bad_parameter(*wrong)


def refuse_prefetch(message: PrefetchPrompt, settings: SchedulerSettings) -> RequestFailure | None:
    """Why a prefetch cannot be served whatever else goes on; None if it can."""
    num_prompt = len(message.token_ids)
    if not 0 < num_prompt < settings.max_model_len:
        return _bad(
            f"the prompt has {num_prompt} tokens; expected 1 to {settings.max_model_len - 1}."
        )

    if not settings.prefix_caching or not settings.has_host_memory:
        text = (
            "a prefetch brings pages to L2, which this engine does without. Set cache.l2 and "
            "cache.prefix_caching."
        )
        return _bad(text)

    # As for deadlines: HostMemory, which all engines of a node share, would wake for it for ever.
    if message.pin_s is not None and not 0 < message.pin_s < math.inf:
        problem = f"is {message.pin_s}; expected a positive number of seconds, or None for no pin."
        return _bad_parameter("keep_s", problem)
    wrong = _wrong_tokens("the prompt", message.token_ids, settings)
    return None if wrong is None else _bad(wrong)


def is_sound_expectation(message: ExpectRequest, settings: SchedulerSettings) -> bool:
    """Whether pages can be had ahead of a request that another engine begins."""
    if not (settings.has_host_memory and settings.prefix_caching and settings.has_full):
        return False
    if not 0 < len(message.token_ids) < settings.max_model_len or not message.within_s > 0:
        return False
    if not _is_priority(message.priority):
        return False
    return _wrong_tokens("the prompt", message.token_ids, settings) is None


def is_sound_hint(hint: Retention) -> bool:
    """Whether a hint names a time; without one nothing can be ordered by it."""
    return 0 <= hint.seconds < math.inf


def _is_priority(number: int) -> bool:
    return -_MAX_PRIORITY <= number <= _MAX_PRIORITY


def _bad(text: str) -> RequestFailure:
    return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)


def _bad_parameter(name: str, problem: str) -> RequestFailure:
    return RequestFailure(kind=FailureKind.BAD_REQUEST, message=problem, parameter=name)


def _wrong_tokens(where: str, token_ids: Int32Array, settings: SchedulerSettings) -> str | None:
    lowest, highest = int(token_ids.min()), int(token_ids.max())
    if lowest >= 0 and highest < settings.vocab_size:
        return None
    wrong = lowest if lowest < 0 else highest
    place = int(np.argmax(token_ids == wrong))
    return (
        f"token {place} of {where} is {wrong}; expected 0 to {settings.vocab_size - 1}, the "
        f"model's vocabulary."
    )


def _wrong_output(message: SubmitRequest, settings: SchedulerSettings) -> _Wrong | None:
    """What is wrong with the output that is known already."""
    num_known = len(message.earlier_output)
    if num_known == 0:
        return None
    room = settings.max_model_len - len(message.token_ids)
    most = room if message.max_tokens is None else min(message.max_tokens, room)
    if num_known >= most:
        return "known_output", f"has {num_known} tokens; expected fewer than the {most} wanted."
    if message.sampling.num_prompt_logprobs is not None:
        return "known_output", "is set beside prompt_logprobs, which come before any output."
    wrong = _wrong_tokens("the output", message.earlier_output, settings)
    return None if wrong is None else ("known_output", f"is wrong: {wrong}")


def _wrong_limits(message: SubmitRequest) -> _Wrong | None:
    # Written so that NaN is refused, too: among the times that wake the Scheduler it would upset
    # their order.
    if message.deadline_s is not None and not 0 < message.deadline_s < math.inf:
        problem = (
            f"is {message.deadline_s}; expected a positive number of seconds, or None for none."
        )
        return "deadline_s", problem
    if message.retention is not None and not is_sound_hint(message.retention):
        return "retention", f"is for {message.retention.seconds} seconds; expected 0 or more."
    if not _is_priority(message.priority):
        problem = f"is {message.priority}; expected -{_MAX_PRIORITY} to {_MAX_PRIORITY}."
        return "priority", problem
    return None


def _wrong_grammar(message: SubmitRequest) -> _Wrong | None:
    """What is wrong with the grammar, as far as it can be told without compiling it."""
    if message.sampling.grammar is not None:
        return "grammar", "is named by its key; expected its text."
    if message.grammar is None:
        return None
    num_bytes = len(message.grammar.text.encode(errors="surrogatepass"))
    if num_bytes > MAX_GRAMMAR_BYTES:
        return message.grammar.parameter, (
            f"has a grammar or schema of {num_bytes} bytes; expected at most {MAX_GRAMMAR_BYTES}."
        )
    # At its end nothing but the end can follow.
    if message.sampling.min_tokens:
        return "min_tokens", "is set beside a grammar, which alone says when an output may end."
    return None


def _wrong_sampling(message: SubmitRequest, settings: SchedulerSettings) -> _Wrong | None:
    sampling = message.sampling
    if not 0 <= sampling.seed <= _MAX_SEED:
        return "seed", f"is {sampling.seed}; expected 0 to {_MAX_SEED}."

    for name, number in (
        ("logprobs", sampling.num_logprobs),
        ("prompt_logprobs", sampling.num_prompt_logprobs),
    ):
        if number is not None and not 0 <= number <= settings.vocab_size:
            return name, f"is {number}; expected 0 to {settings.vocab_size}, or None."

    for name, count in (("top_k", sampling.top_k), ("min_tokens", sampling.min_tokens)):
        if not 0 <= count <= _MAX_COUNT:
            return name, f"is {count}; expected 0 to {_MAX_COUNT}."

    for name, ids in (
        ("stop_token_ids", message.stop_token_ids),
        ("min_tokens", sampling.masked_until_min_tokens),
        ("logit_bias", sampling.biased_token_ids),
    ):
        wrong = _first_outside(ids, settings.vocab_size)
        if wrong is not None:
            problem = f"has {wrong!r}; expected token ids from 0 to {settings.vocab_size - 1}."
            return name, problem
    return _wrong_biases(sampling) or _wrong_number(sampling)


def _wrong_amount(message: SubmitRequest, settings: SchedulerSettings) -> _Wrong | None:
    """What is wrong with the prompt logprobs asked for. A message that is too large would make a
    client that reads look like one that does not.
    """
    num_top = message.sampling.num_prompt_logprobs
    num_tokens = min(len(message.token_ids), settings.max_step_tokens)
    if num_top is None or prompt_logprob_bytes(num_tokens, num_top) <= MAX_PROMPT_LOGPROB_BYTES:
        return None
    return "prompt_logprobs", (
        f"is {num_top} for {num_tokens} tokens in one step, which is more than the "
        f"{MAX_PROMPT_LOGPROB_BYTES >> 20} MiB that may be sent at once. Ask for fewer, or set "
        f"scheduler.chunked_prefill_tokens to less."
    )


def _first_outside(ids: Iterable[object], vocab_size: int) -> object | None:
    return next(
        (value for value in ids if not isinstance(value, int) or not 0 <= value < vocab_size), None
    )


def _wrong_biases(sampling: DeviceSampling) -> _Wrong | None:
    token_ids, biases = sampling.biased_token_ids, sampling.biases
    num_different = len(set(token_ids))
    if not num_different == len(token_ids) == len(biases) <= MAX_BIASED_TOKENS:
        return "logit_bias", (
            f"has {len(token_ids)} tokens, {num_different} of them different, and {len(biases)} "
            f"biases; expected one bias for each of up to {MAX_BIASED_TOKENS} tokens."
        )
    # Written so that NaN is refused, too.
    wrong = next((bias for bias in biases if not -MAX_BIAS <= bias <= MAX_BIAS), None)
    if wrong is not None:
        return "logit_bias", f"has {wrong}; expected numbers from -{MAX_BIAS:g} to {MAX_BIAS:g}."
    return None


def _wrong_number(sampling: DeviceSampling) -> _Wrong | None:
    bounds = {
        "temperature": (sampling.temperature, 0.0, math.inf),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "repetition_penalty": (sampling.repetition_penalty, 0.0, math.inf),
        "presence_penalty": (sampling.presence_penalty, -math.inf, math.inf),
        "frequency_penalty": (sampling.frequency_penalty, -math.inf, math.inf),
    }
    for name, (value, low, high) in bounds.items():
        if not math.isfinite(value) or not low <= value <= high:
            return name, f"is {value}; expected a finite number from {low:g} to {high:g}."
    return None
