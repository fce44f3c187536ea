"""What a checkpoint's config says about rotary embedding, checked against what there is."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raydix.errors import CheckpointError

REMEDY = "Correct config.json, or fetch the checkpoint again."


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultRope:
    """Rotary embedding without scaling."""

    theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRope:
    """All frequencies are divided by `factor`."""

    theta: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalRope:
    """The first pairs of each head turn, `rotary_fraction` of all, and the others stand still.

    Pairs and frequencies are those of whole heads; all frequencies are divided by `factor`.
    """

    theta: float
    factor: float
    rotary_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept."""

    theta: float
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRope:
    """YaRN (arXiv:2309.00071). `attention_factor` scales cos and sin."""

    theta: float
    factor: float
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool
    query_growth: float | None = None
    """Rotated queries are multiplied by 1 + this · ln(1 + ⌊position / original_max_positions⌋)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope:
    """LongRoPE (arXiv:2402.13753): each frequency is divided by a factor of its own.

    Contexts beyond the original one have other factors. An engine uses one set for all requests, by
    the longest context that it serves: keys of one set say nothing to queries of the other.
    """

    theta: float
    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    attention_factor: float
    """The factor on cos and sin."""
    original_max_positions: int
    is_long: bool
    """Is the longest context that is served beyond the original one?"""

    def up_to(self, max_positions: int) -> "LongRope":
        """The same for contexts of at most so many tokens."""
        return replace(self, is_long=max_positions > self.original_max_positions)


Rope = DefaultRope | LinearRope | ProportionalRope | Llama3Rope | YarnRope | LongRope


def yarn_mscale(factor: float, weight: float) -> float:
    """What YaRN makes of attention's temperature when it stretches positions by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def read_rope(parameters: object, max_positions: int) -> Rope:
    """The rotary embedding that these parameters describe, as transformers reads them.

    `max_positions`: `max_position_embeddings` of the config. Raises CheckpointError.
    """
    if not isinstance(parameters, Mapping):
        raise CheckpointError(
            f"The rotary parameters are {parameters!r}; expected an object of them. {REMEDY}"
        )

    theta = positive(parameters, "rope_theta")
    match parameters.get("rope_type"):
        case "default":
            return DefaultRope(theta=theta)
        case "linear":
            return LinearRope(theta=theta, factor=positive(parameters, "factor"))
        case "proportional":
            return _proportional(theta, parameters)
        case "llama3":
            return _llama3(theta, parameters)
        case "yarn":
            return _yarn(theta, parameters, max_positions)
        case "longrope":
            return _longrope(theta, parameters, max_positions)
        case other:
            raise CheckpointError(
                f"rope_type is {other!r}; supported are 'default', 'linear', 'proportional', "
                f"'llama3', 'yarn' and 'longrope'."
            )


def rotary_part(rope: Rope, parameters: object, head_dim: int) -> int | None:
    """How many dims of each head are rotated; None: all. Raises CheckpointError.

    `rope`: what `read_rope` made of the same parameters.
    """
    factor = _rotary_factor(parameters)
    if factor is None or isinstance(rope, ProportionalRope):
        return None
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise CheckpointError(
            f"partial_rotary_factor is {factor} with a head_dim of {head_dim}; expected an even "
            f"number of dims of a head. {REMEDY}"
        )
    return None if rotary_dim == head_dim else rotary_dim


def longest_context(ropes: Iterable[Rope], max_positions: int) -> int:
    """Tokens of the longest context that a model with these rotary embeddings knows.

    Configs often keep the length before YaRN's scaling in `max_position_embeddings`.
    """
    scaled = (
        int(rope.factor * rope.original_max_positions)
        for rope in ropes
        if isinstance(rope, YarnRope)
    )
    return max(max_positions, *scaled, 0)


def positive(parameters: Mapping[str, Any], name: str) -> float:
    """A rotary parameter that must be there. Raises CheckpointError."""
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise CheckpointError(
            f"{name} of the rotary embedding is {value!r}; expected a number above 0. {REMEDY}"
        )
    return float(value)


def _rotary_factor(parameters: object) -> float | None:
    """The part of each head that is to be rotated; None: nothing is said of parts."""
    if not isinstance(parameters, Mapping) or parameters.get("partial_rotary_factor") is None:
        return None
    return positive(parameters, "partial_rotary_factor")


def _proportional(theta: float, parameters: Mapping[str, Any]) -> ProportionalRope:
    fraction = _rotary_factor(parameters)
    if fraction is not None and fraction > 1:
        raise CheckpointError(
            f"partial_rotary_factor is {fraction:g}; expected at most 1, all of a head. {REMEDY}"
        )
    return ProportionalRope(
        theta=theta,
        factor=1.0 if parameters.get("factor") is None else positive(parameters, "factor"),
        rotary_fraction=1.0 if fraction is None else fraction,
    )


def _llama3(theta: float, parameters: Mapping[str, Any]) -> Llama3Rope:
    rope = Llama3Rope(
        theta=theta,
        factor=positive(parameters, "factor"),
        low_freq_factor=positive(parameters, "low_freq_factor"),
        high_freq_factor=positive(parameters, "high_freq_factor"),
        original_max_positions=int(positive(parameters, "original_max_position_embeddings")),
    )
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise CheckpointError(
            f"low_freq_factor is {rope.low_freq_factor:g} and high_freq_factor "
            f"{rope.high_freq_factor:g}; expected the second to be larger. {REMEDY}"
        )
    return rope


def _longrope(theta: float, parameters: Mapping[str, Any], max_positions: int) -> LongRope:
    original = int(positive(parameters, "original_max_position_embeddings"))
    given = {name for name, value in parameters.items() if value is not None}
    stretch = positive(parameters, "factor") if "factor" in given else max_positions / original
    if "attention_factor" in given:
        attention_factor = positive(parameters, "attention_factor")
    else:
        attention_factor = (
            1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
        )
    return LongRope(
        theta=theta,
        short_factors=_factors(parameters, "short_factor"),
        long_factors=_factors(parameters, "long_factor"),
        attention_factor=attention_factor,
        original_max_positions=original,
        is_long=max_positions > original,
    )


def _factors(parameters: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """One factor for each pair of dims; transformers has checked how many there are."""
    values = parameters.get(name)
    if not isinstance(values, list) or any(
        isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each < math.inf
        for each in values
    ):
        raise CheckpointError(
            f"{name} of the rotary embedding is {values!r}; expected numbers above 0. {REMEDY}"
        )
    return tuple(float(each) for each in values)


def _yarn(theta: float, parameters: Mapping[str, Any], max_positions: int) -> YarnRope:
    if theta <= 1:
        raise CheckpointError(f"rope_theta is {theta:g}; YaRN expects more than 1. {REMEDY}")
    original = int(positive(parameters, "original_max_position_embeddings"))
    given = {name for name, value in parameters.items() if value is not None}

    def optional(name: str, default: float) -> float:
        return positive(parameters, name) if name in given else default

    return YarnRope(
        theta=theta,
        factor=optional("factor", max_positions / max(original, 1)),
        attention_factor=(
            positive(parameters, "attention_factor") if "attention_factor" in given else None
        ),
        mscale=parameters.get("mscale"),
        mscale_all_dim=parameters.get("mscale_all_dim"),
        beta_fast=optional("beta_fast", 32),
        beta_slow=optional("beta_slow", 1),
        original_max_positions=max(original, 1),
        truncate=bool(parameters.get("truncate", True)),
    )
