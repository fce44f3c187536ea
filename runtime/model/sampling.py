"""Sampling: a pure function of logits, the request's seed and tokens, and the output position.

Penalty state is counted from the tokens each time, and the noise of output token i comes from (seed, i) alone, so a
row's token does not depend on the batch, on chunks, or on where the request was resumed.

Legend: R rows, V vocabulary, L tokens of the longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1, _MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The sampling rows of a step, in row order."""

    sampling: Sequence[DeviceSampling]
    output_positions: NDArray[np.int64]
    num_prompt_tokens: NDArray[np.int64]
    token_rows_R: Tensor
    """int64: each row's row in `tokens_XL`."""
    tokens_XL: Tensor
    """int tokens of all requests: prompt, then the output so far (`output_position` tokens)."""


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Choose a token for each row: int64 [R]. The logits stay as they are. Nothing waits for the device."""
    special = [
        i for i, (s, p) in enumerate(zip(rows.sampling, rows.output_positions, strict=True)) if _is_special(s, p)
    ]
    token_ids_R = logits_RV.argmax(-1)
    if special:
        index = _column(special, torch.int64, logits_RV)
        token_ids_R[index] = _sample_special(logits_RV[index].float(), _select(rows, special, index))
    return token_ids_R


def _is_special(sampling: DeviceSampling, output_position: int) -> bool:
    return sampling.temperature > 0 or _has_penalties(sampling) or output_position < sampling.min_tokens


def _has_penalties(sampling: DeviceSampling) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _select(rows: SamplingRows, chosen: list[int], index: Tensor) -> SamplingRows:
    return SamplingRows(
        sampling=[rows.sampling[i] for i in chosen],
        output_positions=rows.output_positions[chosen],
        num_prompt_tokens=rows.num_prompt_tokens[chosen],
        token_rows_R=rows.token_rows_R[index],
        tokens_XL=rows.tokens_XL,
    )


def _sample_special(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """In vLLM's order: min_tokens, penalties, temperature, min-p, top-k, top-p, noise."""
    logits_RV = _mask_before_min_tokens(logits_RV, rows)
    penalised = [i for i, sampling in enumerate(rows.sampling) if _has_penalties(sampling)]
    if penalised:
        index = _column(penalised, torch.int64, logits_RV)
        logits_RV[index] = _penalise(logits_RV[index], _select(rows, penalised, index))
    token_ids_R = logits_RV.argmax(-1)
    random = [i for i, sampling in enumerate(rows.sampling) if sampling.temperature > 0]
    if random:
        index = _column(random, torch.int64, logits_RV)
        token_ids_R[index] = _sample_random(logits_RV[index], _select(rows, random, index))
    return token_ids_R


def _column(values: Sequence[float], dtype: torch.dtype, like: Tensor) -> Tensor:
    column = torch.tensor(values, dtype=dtype)
    if like.device.type == "cuda":
        return column.pin_memory().to(like.device, non_blocking=True)
    return column


def _mask_before_min_tokens(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    masked = [
        (i, token_id)
        for i, (sampling, position) in enumerate(zip(rows.sampling, rows.output_positions, strict=True))
        if position < sampling.min_tokens
        for token_id in sampling.masked_until_min_tokens
    ]
    if masked:
        row_ids, token_ids = (_column(ids, torch.int64, logits_RV) for ids in zip(*masked, strict=True))
        # A number as the value would make the host wait for the device.
        logits_RV.index_put_((row_ids, token_ids), logits_RV.new_full((), float("-inf")))
    return logits_RV


def _penalise(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Repetition over prompt and output, presence and frequency over the output, as vLLM applies them."""
    lengths = rows.num_prompt_tokens + rows.output_positions
    tokens_RL = rows.tokens_XL[rows.token_rows_R, : int(lengths.max())].long()
    positions_L = torch.arange(tokens_RL.shape[1], device=logits_RV.device)
    prompt_R1 = _column(rows.num_prompt_tokens.tolist(), torch.int64, logits_RV)[:, None]
    length_R1 = _column(lengths.tolist(), torch.int64, logits_RV)[:, None]
    is_output_RL = (positions_L >= prompt_R1) & (positions_L < length_R1)
    output_counts_RV = torch.zeros_like(logits_RV).scatter_add_(1, tokens_RL, is_output_RL.to(logits_RV.dtype))
    is_token_RL = (positions_L < length_R1).to(logits_RV.dtype)
    is_seen_RV = torch.zeros_like(logits_RV).scatter_add_(1, tokens_RL, is_token_RL) > 0
    repetition_R1 = _column([s.repetition_penalty for s in rows.sampling], torch.float32, logits_RV)[:, None]
    presence_R1 = _column([s.presence_penalty for s in rows.sampling], torch.float32, logits_RV)[:, None]
    frequency_R1 = _column([s.frequency_penalty for s in rows.sampling], torch.float32, logits_RV)[:, None]
    scaled_RV = torch.where(logits_RV > 0, logits_RV / repetition_R1, logits_RV * repetition_R1)
    logits_RV = torch.where(is_seen_RV, scaled_RV, logits_RV)
    return logits_RV - frequency_R1 * output_counts_RV - presence_R1 * (output_counts_RV > 0)


def _sample_random(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    temperature_R1 = _column([s.temperature for s in rows.sampling], torch.float32, logits_RV)[:, None]
    logits_RV = logits_RV / temperature_R1
    if any(s.min_p > 0 for s in rows.sampling):
        min_p_R1 = _column([s.min_p for s in rows.sampling], torch.float32, logits_RV)[:, None]
        probabilities_RV = logits_RV.softmax(-1)
        is_rare_RV = probabilities_RV < min_p_R1 * probabilities_RV.amax(-1, keepdim=True)
        logits_RV = logits_RV.masked_fill(is_rare_RV, float("-inf"))
    if any(s.top_k > 0 or s.top_p < 1 for s in rows.sampling):
        logits_RV = _keep_top(logits_RV, rows.sampling)
    return (logits_RV.double() + _gumbel_noise(logits_RV, rows)).argmax(-1)


def _keep_top(logits_RV: Tensor, sampling: Sequence[DeviceSampling]) -> Tensor:
    """Top-k, then top-p over what it leaves. Ties with the k-th logit stay, and so does the most likely token."""
    vocab_size = logits_RV.shape[1]
    sorted_RV, ids_RV = logits_RV.sort(dim=-1, stable=True)
    cut = [vocab_size - min(s.top_k or vocab_size, vocab_size) for s in sampling]
    threshold_R1 = sorted_RV.gather(1, _column(cut, torch.int64, logits_RV)[:, None])
    sorted_RV = sorted_RV.masked_fill(sorted_RV < threshold_R1, float("-inf"))
    tail_R1 = _column([1 - s.top_p for s in sampling], torch.float32, logits_RV)[:, None]
    is_tail_RV = sorted_RV.softmax(-1).cumsum(-1) <= tail_R1
    # A tail of nothing must cut nothing, although the first sums may round to zero.
    is_tail_RV &= tail_R1 > 0
    is_tail_RV[:, -1] = False
    sorted_RV = sorted_RV.masked_fill(is_tail_RV, float("-inf"))
    return torch.empty_like(sorted_RV).scatter_(1, ids_RV, sorted_RV)


def _gumbel_noise(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Standard Gumbel noise, float64 [R, V]: a hash of (seed, output position, token id), SplitMix64 (Steele 2014)."""
    keys = [_key(s.seed, int(p)) for s, p in zip(rows.sampling, rows.output_positions, strict=True)]
    ids_V = torch.arange(1, logits_RV.shape[1] + 1, device=logits_RV.device)
    state_RV = _column(keys, torch.int64, logits_RV)[:, None] + ids_V * _signed(_GOLDEN)
    mixed_RV = (state_RV ^ _shift_right(state_RV, 30)) * _signed(_MIX1)
    mixed_RV = (mixed_RV ^ _shift_right(mixed_RV, 27)) * _signed(_MIX2)
    mixed_RV = mixed_RV ^ _shift_right(mixed_RV, 31)
    uniform_RV = (_shift_right(mixed_RV, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform_RV))


def _key(seed: int, output_position: int) -> int:
    return _signed(_mix(_mix(seed) + output_position))


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK64
    value = ((value ^ (value >> 30)) * _MIX1) & _MASK64
    value = ((value ^ (value >> 27)) * _MIX2) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """A logical shift: int64 shifts keep the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
