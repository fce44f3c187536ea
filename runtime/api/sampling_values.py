"""What each value of sampling may be, and how a user is told that one is not.

What raises here raises BadParameter, which names the parameter.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeVar

from raydix.errors import BadParameter
from raydix.runtime.api.prompts import is_unicode
from raydix.runtime.messages.plan import MAX_BIAS, MAX_BIASED_TOKENS

MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 64
"""The most stop strings: all are looked for in each token, on the loop that serves everybody."""
MAX_STOP_TOKEN_IDS = 1024
T = TypeVar("T")
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
# Logits times, or over, such numbers stay within float32.
_MAX_TEMPERATURE = 1e6
_MIN_REPETITION, _MAX_REPETITION = 0.01, 100.0
_RANDOM_SEED = -1


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may have, both ends among them, and how to tell a user."""

    lowest: float
    highest: float
    expected: str

    def require(self, name: str, number: float) -> None:
        """Raise BadParameter unless `number` is one of them."""
        require(self.lowest <= number <= self.highest, name, number, self.expected)


RANGES = {
    "n": Range(1, MAX_SAMPLES, f"1 to {MAX_SAMPLES}"),
    "temperature": Range(0, _MAX_TEMPERATURE, f"0 (greedy) or more, up to {_MAX_TEMPERATURE:g}"),
    "top_k": Range(-1, _MAX_INT32, "1 to 2**31 - 1, or 0 or -1 to keep all tokens"),
    # From the first float above 0: a top_p of 0 would keep no token at all.
    "top_p": Range(math.ulp(0.0), 1, "a number in (0, 1]. Set 1 to keep all tokens"),
    "min_p": Range(0, 1, "a number in [0, 1]"),
    "repetition_penalty": Range(
        _MIN_REPETITION,
        _MAX_REPETITION,
        f"a number in [{_MIN_REPETITION:g}, {_MAX_REPETITION:g}]. Set 1 for none",
    ),
    "presence_penalty": Range(-2, 2, "a number in [-2, 2]"),
    "frequency_penalty": Range(-2, 2, "a number in [-2, 2]"),
    "seed": Range(
        -_MAX_INT64 - 1, _MAX_INT64, "-2**63 to 2**63 - 1. Leave it out for a random one"
    ),
    "max_tokens": Range(1, _MAX_INT64, "1 to 2**63 - 1. Leave it out for the rest of the context"),
    "min_tokens": Range(0, _MAX_INT32, "0 to 2**31 - 1"),
    "logprobs": Range(0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}. Leave it out for none"),
    "prompt_logprobs": Range(0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}. Leave it out for none"),
}


def kept_seed(seed: int | None) -> int | None:
    """A seed that the device takes, which are those from 0; None for a random one."""
    return None if seed is None or seed == _RANDOM_SEED else seed % (_MAX_INT64 + 1)


def require(is_valid: bool, name: str, value: object, expected: str) -> None:
    """Raise BadParameter, with what was expected, unless the value is valid."""
    if not is_valid:
        raise BadParameter(name, f"is {value!r}; expected {expected}.")


def is_int(value: object) -> bool:
    """Whether this is a whole number, which True and False are not."""
    # Python's own first: the abstract types take ten times as long to ask.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def is_real(value: object) -> bool:
    """Whether this is a number, which True and False are not."""
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def read_stop(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """The strings of `stop`: one, some or none."""
    # Of a dict iteration would take the keys, of bytes numbers.
    is_readable = isinstance(stop, Iterable) and not isinstance(stop, (Mapping, bytes))
    require(stop is None or is_readable, "stop", stop, "a str, a list of them, or None")
    strings = () if stop is None else (stop,) if isinstance(stop, str) else _some(stop, "stop")
    wrong = [each for each in strings if not _is_stop(each)]
    expected = "non-empty strings without half of a surrogate pair, which no text holds"
    require(not wrong, "stop", list(strings), expected)
    return strings


def _is_stop(value: object) -> bool:
    return isinstance(value, str) and value != "" and is_unicode(value)


_MOST = {"stop": MAX_STOP_STRINGS, "stop_token_ids": MAX_STOP_TOKEN_IDS}


def _some(values: Iterable[T], name: str) -> tuple[T, ...]:
    """All values of a list. Raises BadParameter if it has too many, however many those are."""
    most = _MOST[name]
    some = tuple(itertools.islice(values, most + 1))
    if len(some) > most:
        raise BadParameter(name, f"has more than {most} entries; expected at most so many.")
    return some


def read_stop_token_ids(token_ids: Iterable[int] | None) -> tuple[int, ...]:
    """The ids of `stop_token_ids`."""
    name = "stop_token_ids"
    is_list = token_ids is None or isinstance(token_ids, Iterable)
    require(is_list, name, token_ids, "a list of token ids")

    ids = () if token_ids is None else _some(token_ids, name)
    are_ids = all(is_int(each) and each >= 0 for each in ids)
    require(are_ids, name, list(ids), "token ids, which are whole numbers from 0")
    return tuple(int(each) for each in ids)


def read_logit_bias(logit_bias: Mapping[int | str, float] | None) -> dict[int, float] | None:
    """The biases of `logit_bias`, by token id as a number."""
    if logit_bias is None:
        return None
    is_short = isinstance(logit_bias, Mapping) and len(logit_bias) <= MAX_BIASED_TOKENS
    expected = f"a dict from token ids to numbers, of up to {MAX_BIASED_TOKENS} tokens"
    if not is_short:
        raise BadParameter("logit_bias", f"is {logit_bias!r:.80}; expected {expected}.")

    biases: dict[int, float] = {}
    for given_id, bias in logit_bias.items():
        token_id = _biased_id(given_id)
        if not (is_real(bias) and abs(bias) <= MAX_BIAS):
            raise BadParameter(
                "logit_bias",
                f"of token {token_id} is {bias!r}; expected a number from -{MAX_BIAS:g} to "
                f"{MAX_BIAS:g}.",
            )
        if token_id in biases:
            raise BadParameter(
                "logit_bias", f"has token {token_id} twice, as a number and as text."
            )
        biases[token_id] = float(bias)
    return biases


def _biased_id(given: object) -> int:
    """A token id, which in JSON is text."""
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) <= 10:
        return int(given)
    if isinstance(given, Integral) and is_int(given) and int(given) >= 0:
        return int(given)
    raise BadParameter(
        "logit_bias",
        f"has the key {given!r:.80}; expected token ids, which are whole numbers from "
        "0, or their text.",
    )
