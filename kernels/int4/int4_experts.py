# mypy: disable-error-code="no-untyped-def"
"""Experts whose weights are of four bits: as `moe.grouped_gemm`, made floats in registers.

Legend: T tokens, K experts per token, X = T x K pairs, C hidden, I intermediate, E experts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dense.activation import activate, glu_constants, offset_up
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.int4.form import WORD
from raydix.kernels.int4.int4_dot import (
    ONES,
    add_step,
    input_places,
    load_inputs,
    load_words,
    loaded_column,
)
from raydix.kernels.int4.tiles import ExpertTiles, Int4Tile, expert_tiles, step_depth
from raydix.kernels.int4.weight_inputs import check_experts, words_of
from raydix.kernels.moe.choice_sum import sum_over_choices
from raydix.kernels.moe.expert_inputs import num_together
from raydix.kernels.moe.grouped_gemm import place_of
from raydix.kernels.moe.permute import ExpertBlocks, permute_by_expert
from raydix.kernels.precision import precision_of
from raydix.kernels.weights.int4_weight import Int4Weight


def int4_experts(
    x_TC: Tensor,
    gate_up: Int4Weight,
    down: Int4Weight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
    tiles: ExpertTiles | None = None,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C].

    As `reference.int4_linear.int4_experts` computes it. x: bf16 or float32. gate_up has gate rows,
    then up rows, in each seat. weights_TK: float32; expert_ids_TK: int32 or int64; ids outside of
    0..E-1 add nothing. `tiles`: others than those for so many rows. Raises ValueError if a shape,
    dtype or stride differs.
    """
    check_experts(x_TC, gate_up, down, weights_TK, expert_ids_TK)
    if x_TC.shape[0] == 0:
        return torch.empty_like(x_TC)

    num_experts = down.numbers.matrix_OC.shape[0]
    tiles = tiles or expert_tiles(expert_ids_TK.numel(), num_experts)
    assert tiles.gate_up.rows == tiles.down.rows, "both products have the blocks of one permutation"
    blocks = permute_by_expert(expert_ids_TK, num_experts, tiles.gate_up.rows)
    hidden_XI = x_TC.new_empty((expert_ids_TK.numel(), down.num_inputs))
    choices = expert_ids_TK.shape[1]
    _compute_hidden(x_TC, gate_up, blocks, tiles.gate_up, hidden_XI, choices=choices, form=form)
    choices_TKC = x_TC.new_empty((*expert_ids_TK.shape, x_TC.shape[1]))
    _compute_outputs(hidden_XI, down, weights_TK, blocks, tiles.down, choices_TKC)
    return sum_over_choices(choices_TKC, expert_ids_TK, num_experts)


def _compute_hidden(
    x_TC: Tensor,
    gate_up: Int4Weight,
    blocks: ExpertBlocks,
    tile: Int4Tile,
    hidden_XI: Tensor,
    *,
    choices: int,
    form: GluForm,
) -> None:
    inputs, intermediate = x_TC.shape[1], hidden_XI.shape[1]
    kind, slope, limit = glu_constants(form)
    depth = step_depth(gate_up.form.inputs)
    _gate_up_glu[(blocks.experts_B.numel() * triton.cdiv(intermediate, tile.columns),)](
        x_TC,
        words_of(gate_up),
        gate_up.scales_GO,
        gate_up.zeros_GO,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        hidden_XI,
        x_TC.stride(0),
        inputs,
        intermediate,
        inputs // WORD,
        triton.cdiv(gate_up.group, depth),
        ONES,
        CHOICES=choices,
        IS_WHOLE=inputs % depth == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=depth,
        WARPS=tile.num_warps,
        TOGETHER=num_together(gate_up.numbers.matrix_OC),
        KIND=kind,
        SLOPE=slope,
        LIMIT=limit,
        PRECISION=precision_of(x_TC.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _compute_outputs(
    hidden_XI: Tensor,
    down: Int4Weight,
    weights_TK: Tensor,
    blocks: ExpertBlocks,
    tile: Int4Tile,
    out_TKC: Tensor,
) -> None:
    num_pairs, intermediate = hidden_XI.shape
    outputs, depth = out_TKC.shape[-1], step_depth(down.form.inputs)
    _down_weighted[(blocks.experts_B.numel() * triton.cdiv(outputs, tile.columns),)](
        hidden_XI,
        words_of(down),
        down.scales_GO,
        down.zeros_GO,
        weights_TK,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        out_TKC,
        num_pairs,
        outputs,
        intermediate,
        intermediate // WORD,
        triton.cdiv(down.group, depth),
        ONES,
        IS_WHOLE=intermediate % depth == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=depth,
        WARPS=tile.num_warps,
        TOGETHER=num_together(down.numbers.matrix_OC),
        PRECISION=precision_of(hidden_XI.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit(do_not_specialize=["ones"])
def _gate_up_glu(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    hidden_ptr,
    x_stride,
    inputs,
    intermediate,
    row_words,
    group_steps,
    ones,
    CHOICES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WARPS: tl.constexpr,
    TOGETHER: tl.constexpr,
    KIND: tl.constexpr,
    SLOPE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of the hidden layer, [X, I], rows in the order of `pairs`."""
    tiles_per_block = (intermediate + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0)
    if tile >= tl.load(num_blocks_ptr) * tiles_per_block:
        return
    block, column_tile = place_of(
        tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
    )
    row = tl.load(block_starts_ptr + block) + tl.arange(0, ROWS)
    is_row = row < tl.load(block_ends_ptr + block)
    token = tl.load(pairs_ptr + row, mask=is_row, other=0) // CHOICES
    x_row_ptr = x_ptr + token.to(tl.int64)[:, None] * x_stride
    # Columns past the last read that: only their own results, which are dropped, depend on it.
    read_column = column_tile * COLUMNS + loaded_column(COLUMNS, WARPS)
    read_column = tl.minimum(read_column, intermediate - 1).to(tl.int64)
    expert = tl.load(block_experts_ptr + block).to(tl.int64)
    gate_ptr = words_ptr + (expert * 2 * intermediate + read_column)[:, None] * row_words
    up_ptr = gate_ptr + intermediate.to(tl.int64) * row_words
    num_steps = (inputs + DEPTH - 1) // DEPTH
    num_groups = (num_steps + group_steps - 1) // group_steps
    first_place = expert * num_groups * 2 * intermediate + read_column
    gate_scales, gate_zeros = tl.load(scales_ptr + first_place), tl.load(zeros_ptr + first_place)
    up_place = first_place + intermediate
    up_scales, up_zeros = tl.load(scales_ptr + up_place), tl.load(zeros_ptr + up_place)
    gate = tl.zeros([COLUMNS, ROWS], tl.float32)
    up = tl.zeros([COLUMNS, ROWS], tl.float32)
    place = input_places(DEPTH)

    for step in range(num_steps):
        k = step * DEPTH
        x = load_inputs(x_row_ptr, is_row[:, None], k, place, inputs, IS_WHOLE)
        gate_words = load_words(gate_ptr, k, row_words, DEPTH, IS_WHOLE)
        up_words = load_words(up_ptr, k, row_words, DEPTH, IS_WHOLE)
        # Scales are loaded a step ahead: what multiplies would wait for them.
        next_group = tl.minimum(step + 1, num_steps - 1) // group_steps
        next_place = first_place + next_group * 2 * intermediate
        next_gate_scales = tl.load(scales_ptr + next_place)
        next_gate_zeros = tl.load(zeros_ptr + next_place)
        next_up_scales = tl.load(scales_ptr + next_place + intermediate)
        next_up_zeros = tl.load(zeros_ptr + next_place + intermediate)
        gate = add_step(gate, x, gate_words, gate_zeros, gate_scales, ones, WARPS, PRECISION)
        up = add_step(up, x, up_words, up_zeros, up_scales, ones, WARPS, PRECISION)
        gate_scales, gate_zeros = next_gate_scales, next_gate_zeros
        up_scales, up_zeros = next_up_scales, next_up_zeros

    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    hidden = activate(gate, KIND, SLOPE, LIMIT) * offset_up(up, KIND, LIMIT)
    hidden_row_ptr = hidden_ptr + row.to(tl.int64)[:, None] * intermediate + column[None, :]
    is_out = is_row[:, None] & (column < intermediate)[None, :]
    tl.store(hidden_row_ptr, hidden.T.to(hidden_ptr.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=["num_pairs", "ones"])
def _down_weighted(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    weights_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    out_ptr,
    num_pairs,
    outputs,
    inputs,
    row_words,
    group_steps,
    ones,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WARPS: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Each row's expert output times the weight of its choice, to its place in out[T, K, C]."""
    tiles_per_block = (outputs + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0)
    if tile >= tl.load(num_blocks_ptr) * tiles_per_block:
        return
    block, column_tile = place_of(
        tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
    )
    row = tl.load(block_starts_ptr + block) + tl.arange(0, ROWS)
    is_row = row < tl.load(block_ends_ptr + block)
    x_row_ptr = x_ptr + row.to(tl.int64)[:, None] * inputs
    read_column = column_tile * COLUMNS + loaded_column(COLUMNS, WARPS)
    read_column = tl.minimum(read_column, outputs - 1).to(tl.int64)
    expert = tl.load(block_experts_ptr + block).to(tl.int64)
    row_ptr = words_ptr + (expert * outputs + read_column)[:, None] * row_words
    num_steps = (inputs + DEPTH - 1) // DEPTH
    num_groups = (num_steps + group_steps - 1) // group_steps
    first_place = expert * num_groups * outputs + read_column
    scales, zeros = tl.load(scales_ptr + first_place), tl.load(zeros_ptr + first_place)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    place = input_places(DEPTH)

    for step in range(num_steps):
        k = step * DEPTH
        x = load_inputs(x_row_ptr, is_row[:, None], k, place, inputs, IS_WHOLE)
        words = load_words(row_ptr, k, row_words, DEPTH, IS_WHOLE)
        next_group = tl.minimum(step + 1, num_steps - 1) // group_steps
        next_place = first_place + next_group * outputs
        next_scales, next_zeros = tl.load(scales_ptr + next_place), tl.load(zeros_ptr + next_place)
        total = add_step(total, x, words, zeros, scales, ones, WARPS, PRECISION)
        scales, zeros = next_scales, next_zeros

    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    pair = tl.load(pairs_ptr + row, mask=is_row, other=0)
    weights = tl.load(weights_ptr + pair, mask=is_row, other=0.0)
    out_row_ptr = out_ptr + pair.to(tl.int64)[:, None] * outputs + column[None, :]
    is_out = is_row[:, None] & (column < outputs)[None, :]
    value = total.T * weights[:, None]
    tl.store(out_row_ptr, value.to(out_ptr.dtype.element_ty), mask=is_out)
