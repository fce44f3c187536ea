# mypy: disable-error-code="no-untyped-def"
"""The search for what top-k and top-p keep of a row: the lowest kept logit, without a sort and without atomics.

Logits are compared by integer keys. A pass compares each token with 16 keys at even distances and so finds four bits
of the lowest one: for top-k the highest key that k tokens reach, then for top-p the highest one that its share of the
mass reaches. Every part of a row's vocabulary is one program's; at the start of the next pass, each of a row's programs
adds up the parts' sums for itself, always in one order, so that a row is cut alike in any batch. A row takes part in
those stages alone that it asks for; the programs of others end at once.

Legend: R rows, V vocabulary, S passes, X parts of the vocabulary.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.sampling_columns import SamplingColumns

LARGEST = tl.constexpr(3.4028234663852886e38)
"""The largest float32: infinite logits are taken for it."""
_BITS_PER_PASS = 4
_PIVOTS = tl.constexpr(16)
_PART = 2048
"""Tokens that one program sums."""
_CHUNK = 128
"""Tokens that a program compares with the pivots at a time, in registers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutSearch:
    """What the passes have found; `decide` reads it."""

    lows_SR: Tensor
    """int32, where a pass's pivots begin."""
    goals_SR: Tensor
    """float32, what the sum from the sought key on has to reach."""
    aboves_SR: Tensor
    """float32, the sum from beyond a pass's pivots."""
    floors_R: Tensor
    """int32, the key from which on top-p counts."""
    sums_SRXP: Tensor
    """float32, by part and pivot: number, or weight, of the tokens from the pivot on."""


def key_bits(logits_RV: Tensor) -> int:
    """Bits of the keys of these logits."""
    return 16 if logits_RV.dtype == torch.bfloat16 else 32


def search_cuts(logits_RV: Tensor, columns: SamplingColumns, likeliest_R: Tensor) -> CutSearch:
    """Enqueue all passes. `likeliest_R`: int32, the most likely token of rows that cut."""
    num_rows, vocab_size = logits_RV.shape
    num_parts = triton.cdiv(vocab_size, _PART)
    num_passes = 2 * key_bits(logits_RV) // _BITS_PER_PASS
    search = CutSearch(
        lows_SR=likeliest_R.new_empty((num_passes, num_rows)),
        goals_SR=likeliest_R.new_empty((num_passes, num_rows), dtype=torch.float32),
        aboves_SR=likeliest_R.new_empty((num_passes, num_rows), dtype=torch.float32),
        floors_R=likeliest_R.new_empty(num_rows),
        sums_SRXP=likeliest_R.new_empty((num_passes, num_rows, num_parts, _PIVOTS.value), dtype=torch.float32),
    )
    for number in range(num_passes):
        _search[(num_rows, num_parts)](
            logits_RV,
            columns.temperatures_R,
            columns.top_ks_R,
            columns.top_ps_R,
            columns.min_ps_R,
            likeliest_R,
            search.floors_R,
            search.lows_SR,
            search.goals_SR,
            search.aboves_SR,
            search.sums_SRXP,
            vocab_size,
            logits_RV.stride(0),
            num_rows,
            num_parts,
            PASS=number,
            KEY_BITS=key_bits(logits_RV),
            PARTS=triton.next_power_of_2(num_parts),
            PART=_PART,
            CHUNK=_CHUNK,
            num_warps=4,
        )
    return search


@triton.jit
def load_logits(row_ptr, first, vocab_size, SIZE: tl.constexpr):
    """Logits from token `first` on, and the tokens' ids; -inf past the vocabulary and for NaN."""
    token_id = first + tl.arange(0, SIZE)
    logits = tl.load(row_ptr + token_id, mask=token_id < vocab_size, other=float("-inf"))
    logits = logits.to(tl.float32)
    logits = tl.where(logits == logits, logits, float("-inf"))
    return tl.minimum(logits, LARGEST), token_id


@triton.jit
def load_largest(row_ptr, likeliest):
    """The row's largest logit."""
    logit = tl.load(row_ptr + likeliest).to(tl.float32)
    logit = tl.where(logit == logit, logit, float("-inf"))
    return tl.minimum(logit, LARGEST)


@triton.jit
def weights_of(logits, largest, temperature):
    """Proportional to the tokens' probabilities; that of the most likely one is 1."""
    return tl.exp((logits - largest) * (1.0 / temperature))


@triton.jit
def least_kept(largest, temperature, min_p):
    """The least logit that min-p keeps; -inf without min-p."""
    return largest + temperature * tl.log(min_p)


@triton.jit
def keys_of(logits, KEY_BITS: tl.constexpr):
    """Integers in the order of the logits: the bits, with those of negative numbers turned round."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> (32 - KEY_BITS)


@triton.jit
def decide(
    lows_ptr,
    goals_ptr,
    aboves_ptr,
    sums_ptr,
    top_p,
    row,
    num_rows,
    num_parts,
    PASS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """What a pass that has run says of a row.

    Returns the highest of its pivots whose sum reaches the goal, the goal, the sum beyond that pivot's interval and the
    sum from the pivot on.
    """
    STAGE: tl.constexpr = KEY_BITS // 4
    STEP: tl.constexpr = 2 ** (KEY_BITS - 4 - 4 * (PASS % STAGE))
    entry = PASS * num_rows + row
    pivot = tl.arange(0, _PIVOTS)
    part = tl.arange(0, PARTS)
    index = (entry.to(tl.int64) * num_parts + part[:, None]) * _PIVOTS + pivot[None, :]
    sums = tl.sum(tl.load(sums_ptr + index, mask=part[:, None] < num_parts, other=0.0), 0)

    goal = tl.load(goals_ptr + entry)
    if PASS == STAGE:
        # The first pivot lies below all keys: its sum is the mass of all that top-k left.
        goal = top_p * tl.sum(tl.where(pivot == 0, sums, 0.0), 0)
    chosen = tl.maximum(tl.sum((sums >= goal).to(tl.int32), 0) - 1, 0)

    next_sum = tl.sum(tl.where(pivot == chosen + 1, sums, 0.0), 0)
    above = tl.where(chosen + 1 < _PIVOTS, next_sum, tl.load(aboves_ptr + entry))
    here = tl.sum(tl.where(pivot == chosen, sums, 0.0), 0)
    return tl.load(lows_ptr + entry) + chosen * STEP, goal, above, here


@triton.jit(do_not_specialize=["num_rows"])
def _search(
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    likeliest_ptr,
    floors_ptr,
    lows_ptr,
    goals_ptr,
    aboves_ptr,
    sums_ptr,
    vocab_size,
    logits_stride,
    num_rows,
    num_parts,
    PASS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One pass over one part of a row. The first half of the passes is top-k's, the second top-p's."""
    STAGE: tl.constexpr = KEY_BITS // 4
    IS_MASS: tl.constexpr = PASS >= STAGE
    STEP: tl.constexpr = 2 ** (KEY_BITS - 4 - 4 * (PASS % STAGE))
    row = tl.program_id(0)
    part = tl.program_id(1)
    temperature = tl.load(temperatures_ptr + row).to(tl.float32)
    top_k = tl.load(top_ks_ptr + row)
    top_p_64 = tl.load(top_ps_ptr + row)
    top_p = top_p_64.to(tl.float32)
    is_wanted = top_p_64 < 1.0 if IS_MASS else top_k > 0
    if is_wanted & (temperature > 0.0):
        floor = tl.full((), -(2 ** (KEY_BITS - 1)), tl.int32)
        low = floor
        above = tl.full((), 0.0, tl.float32)
        goal = top_k.to(tl.float32)
        if PASS == STAGE:
            if top_k > 0:
                floor, _, _, _ = decide(
                    lows_ptr,
                    goals_ptr,
                    aboves_ptr,
                    sums_ptr,
                    top_p,
                    row,
                    num_rows,
                    num_parts,
                    PASS - 1,
                    KEY_BITS,
                    PARTS,
                )
        elif IS_MASS:
            floor = tl.load(floors_ptr + row)
        if PASS % STAGE != 0:
            low, goal, above, _ = decide(
                lows_ptr, goals_ptr, aboves_ptr, sums_ptr, top_p, row, num_rows, num_parts, PASS - 1, KEY_BITS, PARTS
            )
        # All of the row's programs have come to the same; the next pass reads it from one of them.
        if part == 0:
            tl.store(lows_ptr + PASS * num_rows + row, low)
            tl.store(goals_ptr + PASS * num_rows + row, goal)
            tl.store(aboves_ptr + PASS * num_rows + row, above)
            if PASS == STAGE:
                tl.store(floors_ptr + row, floor)

        row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
        largest = load_largest(row_ptr, tl.load(likeliest_ptr + row))
        least = least_kept(largest, temperature, tl.load(min_ps_ptr + row).to(tl.float32))
        pivots = low + tl.arange(0, _PIVOTS) * STEP
        # Pivots lie along registers, tokens along threads: that needs no exchange until the end.
        sums = tl.zeros([_PIVOTS, CHUNK], tl.float32)
        for first in tl.static_range(0, PART, CHUNK):
            logits, _ = load_logits(row_ptr, part * PART + first, vocab_size, CHUNK)
            keys = keys_of(logits, KEY_BITS)
            is_kept = (logits > float("-inf")) & (logits >= least) & (keys >= floor)
            weights = weights_of(logits, largest, temperature) if IS_MASS else 1.0
            values = tl.where(is_kept, weights, 0.0)
            sums += tl.where(keys[None, :] >= pivots[:, None], values[None, :], 0.0)
        entry = (PASS * num_rows + row).to(tl.int64) * num_parts + part
        tl.store(sums_ptr + entry * _PIVOTS + tl.arange(0, _PIVOTS), tl.sum(sums, 1))
