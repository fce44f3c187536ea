"""Rotary position embedding: frequencies of each kind, and cos and sin of a step's positions."""

import math
from typing import assert_never

import torch
from torch import Tensor

from raydix.runtime.model.spec.rope_spec import (
    DefaultRope,
    LinearRope,
    Llama3Rope,
    LongRope,
    ProportionalRope,
    Rope,
    YarnRope,
    yarn_mscale,
)


class RotaryEmbedding:
    """Cos and sin tables for positions. R is the number of dims that are rotated."""

    def __init__(self, rope: Rope, rotary_dim: int, device: torch.device) -> None:
        self._rope = rope
        inverse_frequencies, self._scale = _frequencies(rope, rotary_dim)
        self._inverse_frequencies = inverse_frequencies.to(device)

    def tables(self, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (cos_TR, sin_TR) in `dtype`, computed in float32.

        The second half of R repeats the first.
        """
        angles = positions_T[:, None].float() * self._inverse_frequencies
        angles_TR = torch.cat((angles, angles), dim=-1)
        return (angles_TR.cos() * self._scale).to(dtype), (angles_TR.sin() * self._scale).to(dtype)

    def query_scales(self, positions_T: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What rotated queries are multiplied by, [T] in `dtype`; None: they are not."""
        rope = self._rope
        if not isinstance(rope, YarnRope) or rope.query_growth is None:
            return None
        laps_T = torch.floor(positions_T / rope.original_max_positions)
        return (1 + rope.query_growth * torch.log(1 + laps_T)).to(dtype)


def _frequencies(rope: Rope, rotary_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [R/2] and the factor on cos and sin."""
    powers = rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float) / rotary_dim)
    match rope:
        case DefaultRope():
            return 1.0 / powers, 1.0
        case LinearRope():
            return 1.0 / powers / rope.factor, 1.0
        case ProportionalRope():
            return _proportional(rope, 1.0 / powers), 1.0
        case Llama3Rope():
            return _llama3(rope, 1.0 / powers), 1.0
        case LongRope():
            factors = torch.tensor(rope.long_factors if rope.is_long else rope.short_factors)
            return 1.0 / (factors * powers), rope.attention_factor
        case YarnRope():
            return _yarn(rope, powers, rotary_dim), _yarn_attention_factor(rope)
        case _:
            assert_never(rope)


def _proportional(rope: ProportionalRope, inverse: Tensor) -> Tensor:
    num_turned = int(rope.rotary_fraction * 2 * len(inverse) // 2)
    turned = inverse / rope.factor
    turned[num_turned:] = 0.0
    return turned


def _llama3(rope: Llama3Rope, inverse: Tensor) -> Tensor:
    wavelength = 2 * math.pi / inverse
    longest = rope.original_max_positions / rope.low_freq_factor
    shortest = rope.original_max_positions / rope.high_freq_factor
    scaled = torch.where(wavelength > longest, inverse / rope.factor, inverse)
    smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * scaled / rope.factor + smooth * scaled
    is_between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(is_between, blended, scaled)


def _yarn(rope: YarnRope, powers: Tensor, rotary_dim: int) -> Tensor:
    def correction_dim(num_rotations: float) -> float:
        return (
            rotary_dim * math.log(rope.original_max_positions / (num_rotations * 2 * math.pi))
        ) / (2 * math.log(rope.theta))

    low, high = correction_dim(rope.beta_fast), correction_dim(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp(
        (torch.arange(rotary_dim // 2, dtype=torch.float) - low) / (high - low), 0, 1
    )
    extrapolated = 1 - ramp
    return (1.0 / (rope.factor * powers)) * (1 - extrapolated) + (1.0 / powers) * extrapolated


def _yarn_attention_factor(rope: YarnRope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor, 1.0)
