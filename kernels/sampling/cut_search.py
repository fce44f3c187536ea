# mypy: disable-error-code="no-untyped-def"
"""The search for what top-k and top-p keep of a row: its lowest kept logit.

It needs no sort, no atomics and no host sync. Two launches. First, each part of a row's vocabulary
is one program's: it notes the largest logit of each small group of tokens and, where those cannot
bound what is kept, what lies from each of some rough pivots on. Then one program per row takes from
that an interval of logits. Few groups have a token in it: of those, the candidates are collected,
and the search goes on among them alone. Where they are too many for their buffer it goes on in the
row itself, exact, too, but slower: at flat distributions with top-p alone.

The search narrows an interval of integer keys, which have the order of the logits, sixteenfold at a
time. All sums have one order for a vocabulary size, so that a row is cut alike in any batch.

Legend: R rows, V vocabulary, X parts of the vocabulary, G groups of tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.sampling.columns import SamplingColumns
from raydix.kernels.sampling.cut_candidates import LEAST_GOAL, PIVOTS, collect, narrow
from raydix.kernels.sampling.cut_logits import (
    LARGEST,
    keys_of,
    least_kept,
    load_largest,
    load_logits,
    logits_of,
    weights_of,
)

_PART = 2048
"""The number of tokens that one program sums."""
_CHUNK = 128
"""The number of tokens that a program compares with the pivots at a time, in registers."""
_GROUP = 128
"""The number of tokens that share one stored maximum. Few such groups hold a kept token."""
_WARPS = 16
"""The number of warps of a row's program, which has a thread for each lane."""
_LANES = 512
"""The number of candidates that a row's program examines together, one in each thread's lane."""
_DEPTH = 96
"""The number of candidates that are collected for one lane."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cuts:
    """Where each row is cut; undefined for rows that do not cut or whose logits are not finite."""

    edges_R: Tensor
    """The lowest key that each row keeps, int32."""
    needed_R: Tensor
    """The weight that tokens with the lowest kept key have to give to reach top-p, float32."""
    at_edge_R: Tensor
    """The weight that all tokens with the lowest kept key have together, float32."""


def key_bits(logits_RV: Tensor) -> int:
    """Bits of the keys of these logits."""
    return 16 if logits_RV.dtype == torch.bfloat16 else 32


def find_cuts(logits_RV: Tensor, columns: SamplingColumns, likeliest_R: Tensor) -> Cuts:
    """Enqueue the search.

    `likeliest_R`: int32, the most likely token of rows that cut; `NO_TOKEN` for those that cannot.
    """
    num_rows, vocab_size = logits_RV.shape
    num_parts = triton.cdiv(vocab_size, _PART)
    num_groups = triton.cdiv(vocab_size, _GROUP)
    max_depth = min(_DEPTH, triton.cdiv(vocab_size, _LANES))
    maxima_RG = likeliest_R.new_empty((num_rows, num_groups), dtype=torch.float32)
    sums_RXP = likeliest_R.new_empty((num_rows, num_parts, PIVOTS.value), dtype=torch.float32)
    _summarise[(num_rows, num_parts)](
        logits_RV,
        columns.temperatures_R,
        columns.top_ks_R,
        columns.top_ps_R,
        columns.min_ps_R,
        likeliest_R,
        maxima_RG,
        sums_RXP,
        vocab_size,
        logits_RV.stride(0),
        num_groups,
        num_parts,
        KEY_BITS=key_bits(logits_RV),
        PART=_PART,
        CHUNK=_CHUNK,
        GROUP=_GROUP,
        num_warps=4,
    )

    cuts = Cuts(
        edges_R=likeliest_R.new_empty(num_rows),
        needed_R=likeliest_R.new_empty(num_rows, dtype=torch.float32),
        at_edge_R=likeliest_R.new_empty(num_rows, dtype=torch.float32),
    )
    _find[(num_rows,)](
        logits_RV,
        columns.temperatures_R,
        columns.top_ks_R,
        columns.top_ps_R,
        columns.min_ps_R,
        likeliest_R,
        maxima_RG,
        sums_RXP,
        likeliest_R.new_empty((num_rows, num_groups)),
        logits_RV.new_empty((num_rows, max_depth * _LANES)),
        cuts.edges_R,
        cuts.needed_R,
        cuts.at_edge_R,
        vocab_size,
        logits_RV.stride(0),
        num_groups,
        num_parts,
        max_depth,
        KEY_BITS=key_bits(logits_RV),
        PARTS=triton.next_power_of_2(num_parts),
        GROUPS=triton.next_power_of_2(num_groups),
        GROUP=_GROUP,
        LANES=_LANES,
        WIDTH=16 // logits_RV.element_size(),
        num_warps=_WARPS,
    )
    return cuts


@triton.jit
def _is_grouped(top_k, num_groups):
    """Do the maxima of groups bound what top-k keeps? As many tokens as groups reach the bound."""
    return (top_k > 0) & (top_k * 2 <= num_groups)


@triton.jit
def _rough_pivots(largest, temperature, top_p, vocab_size, KEY_BITS: tl.constexpr):
    """Rising keys: the least of all, then some at even distances of logits.

    These begin where all tokens below together are unlikely to count.
    """
    depth = tl.log(tl.zeros_like(largest) + vocab_size) - tl.log(tl.maximum(1.0 - top_p, 1e-6))
    pivot = tl.arange(0, PIVOTS)
    logits = largest - temperature * depth * (1.0 - pivot.to(tl.float32) / PIVOTS)
    logits = tl.where(pivot > 0, tl.maximum(logits, -LARGEST), -LARGEST)
    return keys_of(logits, KEY_BITS)


@triton.jit(do_not_specialize=["num_groups", "num_parts"])
def _summarise(
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    likeliest_ptr,
    maxima_ptr,
    sums_ptr,
    vocab_size,
    logits_stride,
    num_groups,
    num_parts,
    KEY_BITS: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A part's maxima of groups and, unless those suffice, what lies from each pivot on.

    That is the number of tokens for top-k, or their weight for top-p.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    temperature = tl.load(temperatures_ptr + row).to(tl.float32)
    top_k = tl.load(top_ks_ptr + row)
    top_k = tl.where(top_k < vocab_size, top_k, 0)
    top_p_64 = tl.load(top_ps_ptr + row)
    likeliest = tl.load(likeliest_ptr + row)
    is_cut = (temperature > 0.0) & ((top_k > 0) | (top_p_64 < 1.0))
    if is_cut & (likeliest >= 0):
        row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
        group = part * (PART // GROUP) + tl.arange(0, PART // GROUP)
        logits = load_logits(
            row_ptr, group[:, None] * GROUP + tl.arange(0, GROUP)[None, :], vocab_size
        )
        maxima_ptr += row.to(tl.int64) * num_groups
        tl.store(maxima_ptr + group, tl.max(logits, 1), mask=group < num_groups)

        if _is_grouped(top_k, num_groups) == 0:
            largest = load_largest(row_ptr, likeliest)
            least = least_kept(largest, temperature, tl.load(min_ps_ptr + row).to(tl.float32))
            floor = tl.maximum(least, -LARGEST)
            keys = _rough_pivots(
                largest, temperature, top_p_64.to(tl.float32), vocab_size, KEY_BITS
            )
            pivots = logits_of(keys, KEY_BITS)
            # Pivots lie along registers, tokens along threads: that needs no exchange until the
            # end.
            sums = tl.zeros([PIVOTS, CHUNK], tl.float32)
            for first in tl.static_range(0, PART, CHUNK):
                chunk = load_logits(row_ptr, part * PART + first + tl.arange(0, CHUNK), vocab_size)
                weights = tl.where(top_k > 0, 1.0, weights_of(chunk, largest, temperature))
                values = tl.where(chunk >= floor, weights, 0.0)
                sums += tl.where(chunk[None, :] >= pivots[:, None], values[None, :], 0.0)
            entry = row.to(tl.int64) * num_parts + part
            tl.store(sums_ptr + entry * PIVOTS + tl.arange(0, PIVOTS), tl.sum(sums, 1))


@triton.jit
def _decide_roughly(sums_ptr, keys, goal, top_p, end, num_parts, PARTS: tl.constexpr):
    """Bound the cut by the sums of all parts.

    Returns an interval of keys, as begin and end, the goal, and the sums from the begin and from
    the end on.
    """
    part = tl.arange(0, PARTS)
    pivot = tl.arange(0, PIVOTS)
    offsets = part[:, None] * PIVOTS + pivot[None, :]
    sums = tl.sum(tl.load(sums_ptr + offsets, mask=part[:, None] < num_parts, other=0.0), 0)
    total = tl.sum(tl.where(pivot == 0, sums, 0.0), 0)
    goal = tl.where(goal < 0.0, tl.maximum(top_p * total, LEAST_GOAL), goal)

    chosen = tl.maximum(tl.sum((sums >= goal).to(tl.int32), 0) - 1, 0)
    here = tl.sum(tl.where(pivot == chosen, sums, 0.0), 0)
    above = tl.sum(tl.where(pivot == chosen + 1, sums, 0.0), 0)
    low = tl.sum(tl.where(pivot == chosen, keys, 0), 0).to(tl.int64)
    next_key = tl.sum(tl.where(pivot == chosen + 1, keys, 0), 0).to(tl.int64)
    return low, tl.where(chosen + 1 < PIVOTS, next_key, end), goal, here, above


@triton.jit(do_not_specialize=["num_groups", "num_parts", "max_depth"])
def _find(
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    likeliest_ptr,
    maxima_ptr,
    sums_ptr,
    groups_ptr,
    found_ptr,
    edges_ptr,
    needed_ptr,
    at_edge_ptr,
    vocab_size,
    logits_stride,
    num_groups,
    num_parts,
    max_depth,
    KEY_BITS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """A row's cut."""
    row = tl.program_id(0)
    temperature = tl.load(temperatures_ptr + row).to(tl.float32)
    top_k = tl.load(top_ks_ptr + row)
    top_k = tl.where(top_k < vocab_size, top_k, 0)
    top_p_64 = tl.load(top_ps_ptr + row)
    top_p = top_p_64.to(tl.float32)
    likeliest = tl.load(likeliest_ptr + row)
    if (temperature > 0.0) & (likeliest >= 0):
        row_ptr = logits_ptr + row.to(tl.int64) * logits_stride
        largest = load_largest(row_ptr, likeliest)
        least = least_kept(largest, temperature, tl.load(min_ps_ptr + row).to(tl.float32))
        low = keys_of(tl.full((), -LARGEST, tl.float32), KEY_BITS).to(tl.int64)
        end = keys_of(largest, KEY_BITS).to(tl.int64) + 1
        high = end
        goal = tl.full((), -1.0, tl.float32)
        here = tl.full((), 0.0, tl.float32)
        above = tl.full((), 0.0, tl.float32)
        if (top_k > 0) | (top_p_64 < 1.0):
            maxima_ptr += row.to(tl.int64) * num_groups
            lane = tl.arange(0, LANES)
            # A bound below what is kept.
            if _is_grouped(top_k, num_groups):
                counts = (num_groups - lane + LANES - 1) // LANES
                rough_low = keys_of(tl.full((), -LARGEST, tl.float32), 16).to(tl.int64)
                rough_high = keys_of(largest, 16).to(tl.int64) + 1
                bound, _, _, _ = narrow(
                    maxima_ptr, counts, rough_low, rough_high, top_k.to(tl.float32), here, above,
                    float("-inf"), float("inf"), top_p, largest, temperature, False, 16, LANES,
                )  # fmt: skip
                low = keys_of(logits_of(bound.to(tl.int32), 16), KEY_BITS).to(tl.int64)
            else:
                keys = _rough_pivots(largest, temperature, top_p, vocab_size, KEY_BITS)
                row_sums_ptr = sums_ptr + row.to(tl.int64) * num_parts * PIVOTS
                wanted = tl.where(top_k > 0, top_k.to(tl.float32), -1.0)
                low, high, goal, here, above = _decide_roughly(
                    row_sums_ptr, keys, wanted, top_p, end, num_parts, PARTS
                )  # fmt: skip
                if top_k > 0:
                    # Top-p may want the weight of all that is kept, hence all of it is collected.
                    high = end
                    above = 0.0

            floor = tl.maximum(logits_of(low.to(tl.int32), KEY_BITS), least)
            ceiling = tl.where(high < end, logits_of(high.to(tl.int32), KEY_BITS), float("inf"))
            row_found_ptr = found_ptr + row.to(tl.int64) * max_depth * LANES
            counts = collect(
                row_ptr, maxima_ptr, groups_ptr + row.to(tl.int64) * num_groups, row_found_ptr,
                floor, ceiling, vocab_size, num_groups, max_depth, GROUPS, GROUP, LANES, WIDTH,
            )  # fmt: skip
            source_ptr = row_found_ptr
            if tl.max(counts, 0) > max_depth:
                source_ptr = row_ptr
                counts = (vocab_size - lane + LANES - 1) // LANES

            if top_k > 0:
                low, _, _, _ = narrow(
                    source_ptr, counts, low, high, top_k.to(tl.float32), here, above, floor,
                    ceiling, top_p, largest, temperature, False, KEY_BITS, LANES,
                )  # fmt: skip
                high = end
                goal = tl.full((), -1.0, tl.float32)
            if top_p_64 < 1.0:
                low, goal, here, above = narrow(
                    source_ptr, counts, low, high, goal, here, above, floor,
                    ceiling, top_p, largest, temperature, True, KEY_BITS, LANES,
                )  # fmt: skip
        tl.store(edges_ptr + row, low.to(tl.int32))
        tl.store(needed_ptr + row, goal - above)
        tl.store(at_edge_ptr + row, here - above)
