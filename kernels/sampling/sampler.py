# mypy: disable-error-code="no-untyped-def"
"""Sampling of one token per row: temperature, min-p, top-k, top-p and Gumbel noise.

It needs no sort and no host sync. Each part of a row's vocabulary is one program's, which finds the
part's best token; then the best part is chosen. The noise of a token is a hash of (seed, output
position, token id), so a row's token does not depend on its batch.

Legend: R rows, V vocabulary, X parts of the vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.ids import NO_TOKEN
from raydix.kernels.sampling.columns import SamplingColumns, check_inputs
from raydix.kernels.sampling.cut_logits import (
    LARGEST,
    least_kept,
    load_largest,
    load_logits,
    logits_of,
    weights_of,
)
from raydix.kernels.sampling.cut_search import find_cuts, key_bits

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX2 = tl.constexpr(0x94D049BB133111EB)
_BITS_53 = tl.constexpr(2**53 - 1)
_STEP_53 = tl.constexpr(2.0**-53)
_BELOW_1 = tl.constexpr(1 - 2.0**-53)
_PAST_ALL = tl.constexpr(2**31 - 1)
"""A number larger than every token id."""
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_MARGIN = tl.constexpr(1e-3)
"""A margin more than twice as wide as the error of a rough score."""
_PART = 2048
"""The number of tokens that one program scores."""


def sample_whole(logits_RV: Tensor, columns: SamplingColumns) -> Tensor:
    """Sample from rows that do not cut, as `reference.sampling.sample_whole` does.

    Raises ValueError if a shape, dtype or stride differs.
    """
    check_inputs(logits_RV, columns)
    num_rows, vocab_size = logits_RV.shape

    num_parts = triton.cdiv(vocab_size, _PART)
    token_ids_R = torch.empty(num_rows, dtype=torch.int32, device=logits_RV.device)
    scores_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.float64)
    ids_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.int32)
    if num_rows:
        _score_whole[(num_rows, num_parts)](
            logits_RV,
            columns.noise_keys_R,
            columns.temperatures_R,
            columns.top_ks_R,
            columns.top_ps_R,
            columns.min_ps_R,
            scores_RX,
            ids_RX,
            vocab_size,
            logits_RV.stride(0),
            PART=_PART,
            num_warps=4,
        )
        _choose_whole[(num_rows,)](
            scores_RX,
            ids_RX,
            token_ids_R,
            num_parts,
            PARTS=triton.next_power_of_2(num_parts),
            num_warps=1,
        )
    return token_ids_R


def sample_cut(logits_RV: Tensor, columns: SamplingColumns, token_ids_R: Tensor) -> None:
    """Sample from the rows that cut, as `reference.sampling.sample_cut` does.

    Raises ValueError if a shape, dtype or stride differs.
    """
    check_inputs(logits_RV, columns)
    num_rows, vocab_size = logits_RV.shape
    if token_ids_R.dtype != torch.int32 or token_ids_R.shape != (num_rows,):
        actual = f"{token_ids_R.dtype} {tuple(token_ids_R.shape)}"
        raise ValueError(f"token_ids_R is {actual}; expected int32 [{num_rows}].")
    if not num_rows:
        return

    cuts = find_cuts(logits_RV, columns, token_ids_R)
    num_parts = triton.cdiv(vocab_size, _PART)
    scores_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.float64)
    ids_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.int32)
    _score_cut[(num_rows, num_parts)](
        logits_RV,
        columns.noise_keys_R,
        columns.temperatures_R,
        columns.top_ks_R,
        columns.top_ps_R,
        columns.min_ps_R,
        token_ids_R,
        cuts.edges_R,
        cuts.needed_R,
        cuts.at_edge_R,
        scores_RX,
        ids_RX,
        vocab_size,
        logits_RV.stride(0),
        KEY_BITS=key_bits(logits_RV),
        PART=_PART,
        num_warps=4,
    )
    _choose_cut[(num_rows,)](
        columns.temperatures_R,
        columns.top_ks_R,
        columns.top_ps_R,
        columns.min_ps_R,
        scores_RX,
        ids_RX,
        token_ids_R,
        num_parts,
        PARTS=triton.next_power_of_2(num_parts),
        num_warps=1,
    )


@triton.jit
def _divide(logits, temperature):
    """Divide with exact rounding, as the twin does."""
    return tl.minimum(tl.div_rn(logits, tl.zeros_like(logits) + temperature), LARGEST)


@triton.jit
def _is_cut(temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, row):
    """Does the row keep a part of its vocabulary alone?"""
    is_part = (tl.load(top_ks_ptr + row) > 0) | (tl.load(top_ps_ptr + row) < 1.0)
    is_part = is_part | (tl.load(min_ps_ptr + row) > 0.0)
    return is_part & (tl.load(temperatures_ptr + row).to(tl.float32) > 0.0)


@triton.jit
def _noise_bits(noise_key, token_ids):
    """53 bits for each token: SplitMix64 (Steele 2014)."""
    value = noise_key.to(tl.uint64, bitcast=True) + (token_ids.to(tl.uint64) + 1) * _GOLDEN
    value = (value ^ (value >> 30)) * _MIX1
    value = (value ^ (value >> 27)) * _MIX2
    return (value ^ (value >> 31)) >> 11


@triton.jit
def _best_with_noise(scaled, token_ids, noise_key):
    """The largest sum of `scaled` and noise, float64, and its token; -inf if all are.

    Few float64 units and long logarithms: a rough float32 score of all tokens first, then the exact
    one of those that come close to the best, nearly always of one.
    """
    bits = _noise_bits(noise_key, token_ids)
    uniform = (bits.to(tl.float32) + 0.5) * _STEP_53
    complement = ((bits ^ _BITS_53).to(tl.float32) + 0.5) * _STEP_53
    # A fast logarithm is poor near 1, where the large noise is.
    series = complement * (1.0 + complement * (0.5 + complement * (1.0 / 3.0)))
    rough = (scaled - tl.max(scaled, 0)) - tl.log(
        tl.where(complement < 1.0 / 64.0, series, -tl.log(uniform))
    )
    is_close = rough >= tl.max(rough, 0) - _MARGIN

    best = tl.full((), float("-inf"), tl.float64)
    best_id = tl.min(token_ids, 0)
    token_id = tl.min(tl.where(is_close, token_ids, _PAST_ALL), 0)
    while token_id < _PAST_ALL:
        value = tl.max(tl.where(token_ids == token_id, scaled, float("-inf")), 0).to(tl.float64)
        exact = (_noise_bits(noise_key, token_id).to(tl.float64) + 0.5) * _STEP_53
        # Of 2^53 - 1 and a half a float64 makes 2^53.
        exact = tl.minimum(exact, _BELOW_1)
        score = value - tl.log(-tl.log(exact))
        best_id = tl.where(score > best, token_id, best_id)
        best = tl.maximum(best, score)
        token_id = tl.min(tl.where(is_close & (token_ids > token_id), token_ids, _PAST_ALL), 0)
    return best, best_id


@triton.jit
def _score_whole(
    logits_ptr,
    noise_keys_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    scores_ptr,
    ids_ptr,
    vocab_size,
    logits_stride,
    PART: tl.constexpr,
):
    """The best score of one part of a row's vocabulary, and its lowest id."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    temperature = tl.load(temperatures_ptr + row).to(tl.float32)
    is_cut = _is_cut(temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, row)
    token_ids = part * PART + tl.arange(0, PART)
    logits = load_logits(row_ptr, token_ids, vocab_size)
    largest = tl.max(logits, 0)

    if (temperature > 0.0) & (is_cut == 0) & (largest < float("inf")):
        noise_key = tl.load(noise_keys_ptr + row)
        best, best_id = _best_with_noise(_divide(logits, temperature), token_ids, noise_key)
    else:
        # The score of a part that is not finite is +inf, which no other part has.
        best_id = tl.min(tl.where(logits == largest, token_ids, _PAST_ALL), 0)
        best = largest.to(tl.float64)

    entry = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(scores_ptr + entry, best)
    tl.store(ids_ptr + entry, best_id)


@triton.jit
def _score_cut(
    logits_ptr,
    noise_keys_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    likeliest_ptr,
    edges_ptr,
    needed_ptr,
    at_edge_ptr,
    scores_ptr,
    ids_ptr,
    vocab_size,
    logits_stride,
    KEY_BITS: tl.constexpr,
    PART: tl.constexpr,
):
    """Score the tokens that a row keeps; do nothing for rows that do not cut, or cannot."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    likeliest = tl.load(likeliest_ptr + row)
    is_cut = _is_cut(temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, row)
    if is_cut & (likeliest >= 0):
        row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
        temperature = tl.load(temperatures_ptr + row).to(tl.float32)
        min_p = tl.load(min_ps_ptr + row).to(tl.float32)
        token_ids = part * PART + tl.arange(0, PART)
        logits = load_logits(row_ptr, token_ids, vocab_size)
        largest = load_largest(row_ptr, likeliest)
        edge = tl.load(edges_ptr + row)
        is_kept = (logits >= least_kept(largest, temperature, min_p)) & (logits > float("-inf"))
        is_kept = is_kept & (logits >= logits_of(edge, KEY_BITS))

        best = tl.full((), float("-inf"), tl.float64)
        best_id = part * PART
        if tl.max(is_kept.to(tl.int32), 0) > 0:
            scaled = _divide(logits, temperature)
            if tl.load(top_ps_ptr + row) < 1.0:
                weights = weights_of(logits, largest, temperature)
                share = (
                    tl.ceil(tl.load(needed_ptr + row) / weights)
                    * weights
                    / tl.load(at_edge_ptr + row)
                )
                is_edge = logits < logits_of(edge + 1, KEY_BITS)
                scaled = tl.where(is_edge, scaled + tl.log(tl.minimum(share, 1.0)), scaled)
            scaled = tl.where(is_kept, scaled, float("-inf"))
            best, best_id = _best_with_noise(scaled, token_ids, tl.load(noise_keys_ptr + row))
        entry = row.to(tl.int64) * tl.num_programs(1) + part
        tl.store(scores_ptr + entry, best)
        tl.store(ids_ptr + entry, best_id)


@triton.jit
def _choose(scores_ptr, ids_ptr, token_ids_ptr, row, num_parts, PARTS: tl.constexpr):
    """The best part of a row; of equals the lowest id. No token if the best is not finite."""
    part = tl.arange(0, PARTS)
    is_part = part < num_parts
    entry = row.to(tl.int64) * num_parts + part
    scores = tl.load(scores_ptr + entry, mask=is_part, other=float("-inf"))
    token_ids = tl.load(ids_ptr + entry, mask=is_part, other=_PAST_ALL)
    best = tl.max(scores, 0)
    token_id = tl.min(tl.where(scores == best, token_ids, _PAST_ALL), 0)
    is_finite = tl.abs(best) < float("inf")
    tl.store(token_ids_ptr + row, tl.where(is_finite, token_id, _NO_TOKEN))


@triton.jit
def _choose_whole(scores_ptr, ids_ptr, token_ids_ptr, num_parts, PARTS: tl.constexpr):
    _choose(scores_ptr, ids_ptr, token_ids_ptr, tl.program_id(0), num_parts, PARTS)


@triton.jit
def _choose_cut(
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    scores_ptr,
    ids_ptr,
    token_ids_ptr,
    num_parts,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0)
    is_cut = _is_cut(temperatures_ptr, top_ks_ptr, top_ps_ptr, min_ps_ptr, row)
    if is_cut & (tl.load(token_ids_ptr + row) >= 0):
        _choose(scores_ptr, ids_ptr, token_ids_ptr, row, num_parts, PARTS)
