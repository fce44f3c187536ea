# mypy: disable-error-code="no-untyped-def"
"""Sampling of one token per row: temperature, min-p, top-k, top-p and Gumbel noise, without a sort or a host sync.

Cut-offs are found by bisection over the bits of the logits, in the order of the CPU's sampler: min-p, top-k, top-p.
The noise of a token is a hash of (seed, output position, token id), so a row's token does not depend on its batch.

Legend: R rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX2 = tl.constexpr(0x94D049BB133111EB)
_PART = 2048
"""Tokens that one program scores."""
_BLOCK = 16384
"""Tokens that the search for a row's cut-offs reads at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingColumns:
    """One entry per row, on the device; all contiguous. Rows with a temperature of 0 are greedy."""

    seeds_R: Tensor
    """int64."""
    output_positions_R: Tensor
    """int32 or int64."""
    temperatures_R: Tensor
    """float32."""
    top_ks_R: Tensor
    """int32; 0 keeps all tokens."""
    tails_R: Tensor
    """float32: 1 - top_p, subtracted in float64; 0 keeps all tokens."""
    min_ps_R: Tensor
    """float32; 0 keeps all tokens."""


def sample_tokens(logits_RV: Tensor, columns: SamplingColumns | None) -> Tensor:
    """Choose a token for each row: int32 [R]. None: all rows are greedy, where the lowest id wins among equals.

    bf16 or float32 logits, contiguous in V, penalties and masks already applied; a mask is -inf. Raises ValueError if
    a shape, dtype or stride differs.
    """
    if logits_RV.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Logits are {logits_RV.dtype}; expected bfloat16 or float32.")
    if logits_RV.dim() != 2 or logits_RV.stride(1) != 1 or logits_RV.shape[1] == 0:
        raise ValueError(
            f"Logits are {tuple(logits_RV.shape)}, {logits_RV.stride()}; expected [R, V], contiguous in V."
        )
    if columns is not None:
        _check_columns(columns, logits_RV.shape[0])
    num_rows, vocab_size = logits_RV.shape
    token_ids_R = torch.empty(num_rows, dtype=torch.int32, device=logits_RV.device)
    if num_rows == 0:
        return token_ids_R
    num_parts = triton.cdiv(vocab_size, _PART)
    scores_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.float64)
    ids_RX = logits_RV.new_empty((num_rows, num_parts), dtype=torch.int32)
    key_bits = 16 if logits_RV.dtype == torch.bfloat16 else 32
    cutoffs = None if columns is None else _cutoffs(logits_RV, columns, key_bits)
    _score_part[(num_rows, num_parts)](
        logits_RV,
        None if columns is None else columns.seeds_R,
        None if columns is None else columns.output_positions_R,
        None if columns is None else columns.temperatures_R,
        None if cutoffs is None else cutoffs[0],
        None if cutoffs is None else cutoffs[1],
        scores_RX,
        ids_RX,
        vocab_size,
        logits_RV.stride(0),
        KEY_BITS=key_bits,
        PART=_PART,
        num_warps=4,
    )
    _choose_part[(num_rows,)](
        scores_RX, ids_RX, token_ids_R, vocab_size, num_parts, BLOCK=triton.next_power_of_2(num_parts), num_warps=1
    )
    return token_ids_R


def _check_columns(columns: SamplingColumns, num_rows: int) -> None:
    expected = {
        "seeds_R": (columns.seeds_R, (torch.int64,)),
        "output_positions_R": (columns.output_positions_R, (torch.int32, torch.int64)),
        "temperatures_R": (columns.temperatures_R, (torch.float32,)),
        "top_ks_R": (columns.top_ks_R, (torch.int32,)),
        "tails_R": (columns.tails_R, (torch.float32,)),
        "min_ps_R": (columns.min_ps_R, (torch.float32,)),
    }
    for name, (column, dtypes) in expected.items():
        if column.dtype not in dtypes or column.shape != (num_rows,) or not column.is_contiguous():
            raise ValueError(
                f"{name} is {column.dtype} {tuple(column.shape)}; expected contiguous {dtypes[0]} [{num_rows}]."
            )


def _cutoffs(logits_RV: Tensor, columns: SamplingColumns, key_bits: int) -> tuple[Tensor, Tensor]:
    """Per row the key of the lowest kept logit, and the lowest kept id among that key's equals. Both int32."""
    num_rows, vocab_size = logits_RV.shape
    keys_R = torch.empty(num_rows, dtype=torch.int32, device=logits_RV.device)
    first_ids_R = torch.empty_like(keys_R)
    _find_cutoffs[(num_rows,)](
        logits_RV,
        columns.temperatures_R,
        columns.top_ks_R,
        columns.tails_R,
        columns.min_ps_R,
        keys_R,
        first_ids_R,
        vocab_size,
        logits_RV.stride(0),
        KEY_BITS=key_bits,
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab_size)),
        num_warps=16,
    )
    return keys_R, first_ids_R


@triton.jit
def _keys(logits, KEY_BITS: tl.constexpr):
    """Integers in the order of the logits: the bits, with those of negative numbers turned round."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> (32 - KEY_BITS)


@triton.jit
def _load_logits(row_ptr, first, vocab_size, BLOCK: tl.constexpr):
    token_id = first + tl.arange(0, BLOCK)
    is_token = token_id < vocab_size
    return tl.load(row_ptr + token_id, mask=is_token, other=float("-inf")).to(tl.float32), token_id, is_token


@triton.jit
def _count_from(row_ptr, vocab_size, key, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Number of tokens whose key is at least `key`."""
    count = tl.zeros([BLOCK], tl.int32)
    for first in range(0, vocab_size, BLOCK):
        logits, _, is_token = _load_logits(row_ptr, first, vocab_size, BLOCK)
        count += (is_token & (_keys(logits, KEY_BITS) >= key)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _mass(row_ptr, vocab_size, lowest, highest, maximum, scale, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of the weights of the tokens with keys in lowest..highest; the most likely token weighs 1."""
    mass = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocab_size, BLOCK):
        logits, _, is_token = _load_logits(row_ptr, first, vocab_size, BLOCK)
        keys = _keys(logits, KEY_BITS)
        mass += tl.where(is_token & (keys >= lowest) & (keys <= highest), tl.exp((logits - maximum) * scale), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def _count_equals(row_ptr, vocab_size, key, end, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Number of tokens below id `end` with this key."""
    count = tl.zeros([BLOCK], tl.int32)
    for first in range(0, vocab_size, BLOCK):
        logits, token_id, _ = _load_logits(row_ptr, first, vocab_size, BLOCK)
        count += ((token_id < end) & (_keys(logits, KEY_BITS) == key)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _find_cutoffs(
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    tails_ptr,
    min_ps_ptr,
    keys_ptr,
    first_ids_ptr,
    vocab_size,
    logits_stride,
    KEY_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row. Midpoints are formed without overflow: keys fill all of their bits."""
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    temperature = tl.load(temperatures_ptr + row)
    top_k = tl.load(top_ks_ptr + row)
    tail = tl.load(tails_ptr + row)
    min_p = tl.load(min_ps_ptr + row)
    lowest = tl.full((), -(2 ** (KEY_BITS - 1)), tl.int32)
    first_id = tl.full((), 0, tl.int32)
    if (temperature > 0.0) & ((top_k > 0) | (tail > 0.0) | (min_p > 0.0)):
        maxima = tl.full([BLOCK], float("-inf"), tl.float32)
        for first in range(0, vocab_size, BLOCK):
            logits, _, _ = _load_logits(row_ptr, first, vocab_size, BLOCK)
            maxima = tl.maximum(maxima, logits)
        maximum = tl.max(maxima, 0)
        highest = _keys(maximum, KEY_BITS)
        scale = 1.0 / temperature
        if min_p > 0.0:
            kept_keys = tl.full([BLOCK], 2 ** (KEY_BITS - 1) - 1, tl.int32)
            for first in range(0, vocab_size, BLOCK):
                logits, _, is_token = _load_logits(row_ptr, first, vocab_size, BLOCK)
                is_kept = is_token & (tl.exp((logits - maximum) * scale) >= min_p)
                kept_keys = tl.where(is_kept, tl.minimum(kept_keys, _keys(logits, KEY_BITS)), kept_keys)
            lowest = tl.min(kept_keys, 0)
        if top_k > 0:
            # The highest key that at least k tokens reach.
            ceiling = highest
            while lowest < ceiling:
                middle = (lowest | ceiling) - ((lowest ^ ceiling) >> 1)
                if _count_from(row_ptr, vocab_size, middle, KEY_BITS, BLOCK) >= top_k:
                    lowest = middle
                else:
                    ceiling = middle - 1
        if tail > 0.0:
            # The lowest key up to which the weights sum to more than the tail.
            cut_mass = tail * _mass(row_ptr, vocab_size, lowest, highest, maximum, scale, KEY_BITS, BLOCK)
            start = lowest
            ceiling = highest
            while lowest < ceiling:
                middle = (lowest & ceiling) + ((lowest ^ ceiling) >> 1)
                if _mass(row_ptr, vocab_size, start, middle, maximum, scale, KEY_BITS, BLOCK) > cut_mass:
                    ceiling = middle
                else:
                    lowest = middle + 1
            # Of equals at the edge the lower ids are cut, while the sum stays within the tail.
            total = _mass(row_ptr, vocab_size, start, lowest, maximum, scale, KEY_BITS, BLOCK)
            weight = _mass(row_ptr, vocab_size, lowest, lowest, maximum, scale, KEY_BITS, BLOCK)
            num_equals = _count_equals(row_ptr, vocab_size, lowest, vocab_size, KEY_BITS, BLOCK)
            num_kept = tl.ceil((total - cut_mass) / weight * num_equals.to(tl.float32)).to(tl.int32)
            num_cut = num_equals - tl.maximum(tl.minimum(num_kept, num_equals), 1)
            if num_cut > 0:
                end = vocab_size
                while first_id < end:
                    middle = (first_id + end) // 2
                    if _count_equals(row_ptr, vocab_size, lowest, middle, KEY_BITS, BLOCK) >= num_cut:
                        end = middle
                    else:
                        first_id = middle + 1
    tl.store(keys_ptr + row, lowest)
    tl.store(first_ids_ptr + row, first_id)


@triton.jit
def _mix(value):
    """SplitMix64's step (Steele 2014)."""
    value = value + _GOLDEN
    value = (value ^ (value >> 30)) * _MIX1
    value = (value ^ (value >> 27)) * _MIX2
    return value ^ (value >> 31)


@triton.jit
def _score_part(
    logits_ptr,
    seeds_ptr,
    positions_ptr,
    temperatures_ptr,
    keys_ptr,
    first_ids_ptr,
    scores_ptr,
    ids_ptr,
    vocab_size,
    logits_stride,
    KEY_BITS: tl.constexpr,
    PART: tl.constexpr,
):
    """The best score of one part of a row's vocabulary, and its lowest id."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
    logits, token_id, is_token = _load_logits(row_ptr, part * PART, vocab_size, PART)
    scores = logits.to(tl.float64)
    if temperatures_ptr is not None:
        temperature = tl.load(temperatures_ptr + row)
        if temperature > 0.0:
            key = tl.load(keys_ptr + row)
            keys = _keys(logits, KEY_BITS)
            is_kept = (keys > key) | ((keys == key) & (token_id >= tl.load(first_ids_ptr + row)))
            seed = tl.load(seeds_ptr + row).to(tl.uint64, bitcast=True)
            state = _mix(_mix(seed) + tl.load(positions_ptr + row).to(tl.uint64))
            hashed = _mix(state + token_id.to(tl.uint64) * _GOLDEN)
            uniform = ((hashed >> 11).to(tl.float64) + 0.5) * (1.0 / 9007199254740992.0)
            scaled = tl.div_rn(logits, tl.zeros_like(logits) + temperature).to(tl.float64)
            scores = tl.where(is_kept, scaled - tl.log(-tl.log(uniform)), float("-inf"))
    best = tl.max(tl.where(is_token, scores, float("-inf")), 0)
    entry = row.to(tl.int64) * tl.num_programs(1) + part
    tl.store(scores_ptr + entry, best)
    tl.store(ids_ptr + entry, tl.min(tl.where(is_token & (scores == best), token_id, vocab_size), 0))


@triton.jit
def _choose_part(scores_ptr, ids_ptr, token_ids_ptr, vocab_size, num_parts, BLOCK: tl.constexpr):
    """The best part of a row; of equals the first."""
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    is_part = part < num_parts
    entry = row.to(tl.int64) * num_parts + part
    scores = tl.load(scores_ptr + entry, mask=is_part, other=float("-inf"))
    token_ids = tl.load(ids_ptr + entry, mask=is_part, other=vocab_size)
    token_id = tl.min(tl.where(scores == tl.max(scores, 0), token_ids, vocab_size), 0)
    # Only a row of NaN has no best token; its id must still be one that the next step can look up.
    tl.store(token_ids_ptr + row, tl.minimum(token_id, vocab_size - 1))
