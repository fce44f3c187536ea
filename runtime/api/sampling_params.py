"""What a user may ask of one request's sampling, checked when it is made."""

import difflib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Self, TypeVar

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.prompts import is_unicode
from raydix.runtime.messages.plan import MAX_BIAS, MAX_BIASED_TOKENS, DeviceSampling

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
_NAMES_OF_VLLM_NOT_SUPPORTED = frozenset(
    (
        "allowed_token_ids", "bad_words", "beam_width", "best_of", "extra_args", "flat_logprobs",
        "guided_decoding", "logits_processors", "response_format",
        "structured_outputs", "truncate_prompt_tokens", "use_beam_search",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Range:
    """The values that a number may have, both ends among them, and how to tell a user."""

    lowest: float
    highest: float
    expected: str

    def require(self, name: str, number: float) -> None:
        """Raise BadRequest unless `number` is one of them."""
        _require(self.lowest <= number <= self.highest, name, number, self.expected)


_RANGES = {
    "n": _Range(1, MAX_SAMPLES, f"1 to {MAX_SAMPLES}"),
    "temperature": _Range(0, _MAX_TEMPERATURE, f"0 (greedy) or more, up to {_MAX_TEMPERATURE:g}"),
    "top_k": _Range(-1, _MAX_INT32, "1 to 2**31 - 1, or 0 or -1 to keep all tokens"),
    # From the first float above 0: a top_p of 0 would keep no token at all.
    "top_p": _Range(math.ulp(0.0), 1, "a number in (0, 1]. Set 1 to keep all tokens"),
    "min_p": _Range(0, 1, "a number in [0, 1]"),
    "repetition_penalty": _Range(
        _MIN_REPETITION,
        _MAX_REPETITION,
        f"a number in [{_MIN_REPETITION:g}, {_MAX_REPETITION:g}]. Set 1 for none",
    ),
    "presence_penalty": _Range(-2, 2, "a number in [-2, 2]"),
    "frequency_penalty": _Range(-2, 2, "a number in [-2, 2]"),
    "seed": _Range(
        -_MAX_INT64 - 1, _MAX_INT64, "-2**63 to 2**63 - 1. Leave it out for a random one"
    ),
    "max_tokens": _Range(1, _MAX_INT64, "1 to 2**63 - 1. Leave it out for the rest of the context"),
    "min_tokens": _Range(0, _MAX_INT32, "0 to 2**31 - 1"),
    "logprobs": _Range(0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}. Leave it out for none"),
    "prompt_logprobs": _Range(0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}. Leave it out for none"),
}


_RANDOM_SEED = -1


class OutputKind(StrEnum):
    """What each yielded output holds: all so far, what is new, or all of it once at the end."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one request, with vLLM's names and meanings.

    Raises BadRequest for what cannot be honoured. `max_new_tokens` is another name for
    `max_tokens`. The noise of output token i depends on `seed`
    and i alone; without a seed the client draws one per request. Penalties: repetition counts
    prompt and output, presence and frequency count output alone.
    """

    n: int = 1
    """The number of samples of the prompt, at most 128. The prompt is computed once, but for what
    its last page lacks. Sample i has the seed `seed + i`.
    """
    temperature: float = 1.0
    """The divisor of the logits. 0 is greedy, and so is any below 1e-5, too small for float32."""
    top_k: int = 0
    """The number of likeliest tokens to sample from; 0 and -1 keep all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """The divisor, 0.01 to 100, of seen tokens' logits, or factor where they are negative."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    """The seed of the noise. None, or -1 as in vLLM: random. Other negatives get 2**63 added."""
    logit_bias: Mapping[int | str, float] | None = field(default=None, hash=False)
    """A number from -100 to 100 for each of up to 1,024 token ids, which is added to the token's
    logit. Ids may be text, as in JSON; kept as a dict of int to float. As in vLLM, biases come
    after the mask of `min_tokens`, before penalties and temperature.
    """
    stop: Sequence[str] = ()
    """Strings (one or up to 64) that end the output, the text before them; kept as a tuple."""
    stop_token_ids: Sequence[int] = ()
    """The token ids, up to 1,024, of which each ends the output."""
    include_stop_str_in_output: bool = False
    """Whether to keep the matched stop string, or the text of the stopping token, in the text."""
    ignore_eos: bool = False
    """Whether to go on past the model's EOS ids; `stop` and `stop_token_ids` still end it."""
    max_tokens: int | None = None
    """The most output tokens; None: the rest of the model's context."""
    min_tokens: int = 0
    """The number of output tokens before which EOS (under `ignore_eos`, too) and stop ids are not
    sampled and stop strings have no effect. More than the context has room for means all of that.
    """
    logprobs: int | None = None
    """The number of likeliest tokens, 0 to 20, that get raw logprobs beside the sampled one.
    None: no token gets any.
    """
    prompt_logprobs: int | None = None
    """The same as `logprobs`, for each token of the prompt but the first. Such a request takes
    nothing from a cache, which holds no logits; others may use its pages.
    """
    detokenize: bool = True
    skip_special_tokens: bool = True
    output_kind: OutputKind = OutputKind.CUMULATIVE
    max_new_tokens: InitVar[int | None] = None

    def __new__(cls, **values: Any) -> Self:
        """Refuse unknown names: the generated `__init__` would not tell the nearest one."""
        _refuse_unknown_names(values)
        return object.__new__(cls)

    def __post_init__(self, max_new_tokens: int | None) -> None:
        if max_new_tokens is not None:
            self._adopt_max_new_tokens(max_new_tokens)
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        object.__setattr__(self, "output_kind", _output_kind(self.output_kind))
        self._check_numbers()
        object.__setattr__(self, "seed", _kept_seed(self.seed))
        self._check_switches()
        self._check_contradictions()

    @classmethod
    def of(cls, value: "SamplingParams | Mapping[str, Any] | None") -> "SamplingParams":
        """`value` itself, the parameters that a mapping names, or for None all defaults."""
        if value is None:
            return cls()
        if isinstance(value, SamplingParams):
            return value
        if isinstance(value, Mapping):
            return cls(**value)
        raise BadRequest(
            f"sampling_params is a {type(value).__name__}; "
            "expected a SamplingParams, a dict or None."
        )

    def ending_token_ids(self, eos_token_ids: Iterable[int]) -> tuple[int, ...]:
        """The ids that end the output: `stop_token_ids`, and EOS unless that is ignored; sorted."""
        return tuple(sorted({*self.stop_token_ids, *(() if self.ignore_eos else eos_token_ids)}))

    @property
    def biases(self) -> dict[int, float]:
        """The biases that change something, in the order of the ids."""
        given = self.logit_bias or {}
        return {int(token_id): bias for token_id, bias in sorted(given.items()) if bias}

    def to_device(self, eos_token_ids: Iterable[int], seed: int) -> DeviceSampling:
        """The part that the device needs. `seed` stands in where the user gave none."""
        # What would end the output, and EOS even where it is ignored, as vLLM and transformers do.
        masked_ids = sorted({*self.stop_token_ids, *eos_token_ids}) if self.min_tokens else ()
        biases = self.biases

        return DeviceSampling(
            seed=seed if self.seed is None else self.seed,
            temperature=float(self.temperature),
            top_k=max(self.top_k, 0),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            min_tokens=self.min_tokens,
            masked_until_min_tokens=tuple(masked_ids),
            biased_token_ids=tuple(biases),
            biases=tuple(biases.values()),
            num_logprobs=self.logprobs,
            num_prompt_logprobs=self.prompt_logprobs,
        )

    def _adopt_max_new_tokens(self, max_new_tokens: int) -> None:
        if self.max_tokens is not None and self.max_tokens != max_new_tokens:
            raise BadParameter(
                "max_tokens",
                f"is {self.max_tokens!r} and max_new_tokens is {max_new_tokens!r}; "
                "they name one limit. Set one of them.",
            )
        object.__setattr__(self, "max_tokens", max_new_tokens)

    def _check_numbers(self) -> None:
        for name, number in (("n", self.n), ("top_k", self.top_k), ("min_tokens", self.min_tokens)):
            _require(_is_int(number), name, number, "a whole number")
            _RANGES[name].require(name, number)

        for name, limit in (
            ("seed", self.seed),
            ("max_tokens", self.max_tokens),
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ):
            if limit is not None:
                _require(_is_int(limit), name, limit, "a whole number or None")
                _RANGES[name].require(name, limit)

        for name, real in (
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _require(_is_real(real) and math.isfinite(real), name, real, "a finite number")
            _RANGES[name].require(name, real)

    def _check_switches(self) -> None:
        for name, switch in (
            ("include_stop_str_in_output", self.include_stop_str_in_output),
            ("ignore_eos", self.ignore_eos),
            ("detokenize", self.detokenize),
            ("skip_special_tokens", self.skip_special_tokens),
        ):
            _require(isinstance(switch, bool), name, switch, "True or False")

    def _check_contradictions(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadParameter(
                "min_tokens",
                f"is {self.min_tokens} and max_tokens is {self.max_tokens}; expected "
                "min_tokens <= max_tokens. Raise max_tokens or lower min_tokens.",
            )
        if self.n > 1 and self.temperature == 0:
            raise BadParameter(
                "n",
                f"is {self.n} and temperature is 0; greedy samples are all equal. Set n=1, or a "
                "temperature.",
            )
        if self.stop and not self.detokenize:
            raise BadParameter(
                "stop",
                f"is {list(self.stop)} and detokenize is False; stop strings are looked for "
                "in the text. Set detokenize=True or use stop_token_ids.",
            )


_VALID_NAMES = frozenset({*(each.name for each in fields(SamplingParams)), "max_new_tokens"})


def _refuse_unknown_names(values: Mapping[str, Any]) -> None:
    for name in values:
        if name in _VALID_NAMES:
            continue
        if name in _NAMES_OF_VLLM_NOT_SUPPORTED:
            raise BadRequest(
                f"The sampling parameter {name!r} is not supported by this version. Leave it out."
            )

        nearest = difflib.get_close_matches(str(name), _VALID_NAMES, n=1, cutoff=0.5)
        advice = (
            f"Did you mean {nearest[0]!r}?"
            if nearest
            else f"Use one of {', '.join(sorted(_VALID_NAMES))}."
        )
        raise BadRequest(f"{name!r} is no sampling parameter. {advice}")


def _kept_seed(seed: int | None) -> int | None:
    """A seed that the device takes, which are those from 0; None for a random one."""
    return None if seed is None or seed == _RANDOM_SEED else seed % (_MAX_INT64 + 1)


def _require(is_valid: bool, name: str, value: object, expected: str) -> None:
    if not is_valid:
        raise BadParameter(name, f"is {value!r}; expected {expected}.")


def _is_int(value: object) -> bool:
    # Python's own first: the abstract types take ten times as long to ask.
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _is_real(value: object) -> bool:
    return type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))


def _stop_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    # Of a dict iteration would take the keys, of bytes numbers.
    is_readable = isinstance(stop, Iterable) and not isinstance(stop, (Mapping, bytes))
    _require(stop is None or is_readable, "stop", stop, "a str, a list of them, or None")
    strings = () if stop is None else (stop,) if isinstance(stop, str) else _some(stop, "stop")
    wrong = [each for each in strings if not _is_stop(each)]
    expected = "non-empty strings without half of a surrogate pair, which no text holds"
    _require(not wrong, "stop", list(strings), expected)
    return strings


def _is_stop(value: object) -> bool:
    return isinstance(value, str) and value != "" and is_unicode(value)


_MOST = {"stop": MAX_STOP_STRINGS, "stop_token_ids": MAX_STOP_TOKEN_IDS}


def _some(values: Iterable[T], name: str) -> tuple[T, ...]:
    """All values of a list. Raises BadRequest if it has too many, however many those are."""
    most = _MOST[name]
    some = tuple(itertools.islice(values, most + 1))
    if len(some) > most:
        raise BadParameter(name, f"has more than {most} entries; expected at most so many.")
    return some


def _token_ids(token_ids: Iterable[int] | None) -> tuple[int, ...]:
    name = "stop_token_ids"
    is_list = token_ids is None or isinstance(token_ids, Iterable)
    _require(is_list, name, token_ids, "a list of token ids")

    ids = () if token_ids is None else _some(token_ids, name)
    are_ids = all(_is_int(each) and each >= 0 for each in ids)
    _require(are_ids, name, list(ids), "token ids, which are whole numbers from 0")
    return tuple(int(each) for each in ids)


def _logit_bias(logit_bias: Mapping[int | str, float] | None) -> dict[int, float] | None:
    if logit_bias is None:
        return None
    is_short = isinstance(logit_bias, Mapping) and len(logit_bias) <= MAX_BIASED_TOKENS
    expected = f"a dict from token ids to numbers, of up to {MAX_BIASED_TOKENS} tokens"
    if not is_short:
        raise BadParameter("logit_bias", f"is {logit_bias!r:.80}; expected {expected}.")

    biases: dict[int, float] = {}
    for given_id, bias in logit_bias.items():
        token_id = _biased_id(given_id)
        if not (_is_real(bias) and abs(bias) <= MAX_BIAS):
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
    if isinstance(given, Integral) and _is_int(given) and int(given) >= 0:
        return int(given)
    raise BadParameter(
        "logit_bias",
        f"has the key {given!r:.80}; expected token ids, which are whole numbers from "
        "0, or their text.",
    )


def _output_kind(kind: str) -> OutputKind:
    try:
        return OutputKind(kind)
    except ValueError as error:
        raise BadRequest(
            f"output_kind is {kind!r}; expected one of {', '.join(OutputKind)}."
        ) from error
