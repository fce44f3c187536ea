"""What a user may ask of one request's sampling, checked when it is made."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.sampling_values import (
    RANGES,
    is_int,
    is_real,
    kept_seed,
    read_logit_bias,
    read_stop,
    read_stop_token_ids,
    require,
)
from raydix.runtime.api.structured_outputs import StructuredOutputs
from raydix.runtime.config.nearest import nearest
from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.messages.plan import DeviceSampling

_NAMES_OF_VLLM_NOT_SUPPORTED = frozenset(
    (
        "allowed_token_ids", "bad_words", "beam_width", "best_of", "extra_args", "flat_logprobs",
        "guided_decoding", "logits_processors", "response_format",
        "truncate_prompt_tokens", "use_beam_search",
    )
)  # fmt: skip


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
    structured_outputs: StructuredOutputs | Mapping[str, Any] | None = None
    """What the output has to be, such as `{"json": SCHEMA}`: see `StructuredOutputs`. Tokens that
    may not come are masked, behind biases and penalties; logprobs are those without the mask.
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
        object.__setattr__(self, "stop", read_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", read_stop_token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", read_logit_bias(self.logit_bias))
        object.__setattr__(self, "output_kind", _output_kind(self.output_kind))
        object.__setattr__(
            self, "structured_outputs", StructuredOutputs.of(self.structured_outputs)
        )
        self._check_numbers()
        object.__setattr__(self, "seed", kept_seed(self.seed))
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

    def grammar(self) -> Grammar | None:
        """The grammar of the output; None: it is free."""
        structured = StructuredOutputs.of(self.structured_outputs)
        return None if structured is None else structured.to_grammar()

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
            require(is_int(number), name, number, "a whole number")
            RANGES[name].require(name, number)

        for name, limit in (
            ("seed", self.seed),
            ("max_tokens", self.max_tokens),
            ("logprobs", self.logprobs),
            ("prompt_logprobs", self.prompt_logprobs),
        ):
            if limit is not None:
                require(is_int(limit), name, limit, "a whole number or None")
                RANGES[name].require(name, limit)

        for name, real in (
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            require(is_real(real) and math.isfinite(real), name, real, "a finite number")
            RANGES[name].require(name, real)

    def _check_switches(self) -> None:
        for name, switch in (
            ("include_stop_str_in_output", self.include_stop_str_in_output),
            ("ignore_eos", self.ignore_eos),
            ("detokenize", self.detokenize),
            ("skip_special_tokens", self.skip_special_tokens),
        ):
            require(isinstance(switch, bool), name, switch, "True or False")

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
        structured = StructuredOutputs.of(self.structured_outputs)
        if structured is not None and (self.ignore_eos or self.min_tokens):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise BadParameter(
                name,
                f"is set beside {structured.parameter}, whose form alone says when an output may "
                "end, and must. Leave it out.",
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

        near = nearest(str(name), _VALID_NAMES)
        advice = (
            f"Did you mean {near!r}?" if near else f"Use one of {', '.join(sorted(_VALID_NAMES))}."
        )
        raise BadRequest(f"{name!r} is no sampling parameter. {advice}")


def _output_kind(kind: str) -> OutputKind:
    try:
        return OutputKind(kind)
    except ValueError as error:
        raise BadRequest(
            f"output_kind is {kind!r}; expected one of {', '.join(OutputKind)}."
        ) from error
