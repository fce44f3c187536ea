# mypy: disable-error-code="no-untyped-def"
"""The outputs of experts in float8.

Legend: as in `scaled_experts`.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.fp8.expert_inputs import Rows, matrices_of
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.rounding import round_rows
from raydix.kernels.fp8.scaled_dot import (
    MIN_LEFT_ROWS,
    add_block,
    empty_total,
    load_rows,
    scale_factor,
    scale_places,
)
from raydix.kernels.fp8.scaled_tiles import ScaledTile
from raydix.kernels.fp8.weight_inputs import scale_strides
from raydix.kernels.moe.expert_inputs import num_together
from raydix.kernels.moe.grouped_gemm import place_of
from raydix.kernels.moe.permute import ExpertBlocks
from raydix.kernels.weights.scaled_weight import ScaledWeight


def compute_outputs(
    hidden: Rows,
    down: ScaledWeight,
    weights_TK: Tensor,
    blocks: ExpertBlocks,
    tile: ScaledTile,
    out_TKC: Tensor,
) -> None:
    """Fill each choice's weighted output of `blocks`; those of no expert stay as they are."""
    num_pairs, intermediate = hidden.values.shape
    outputs = out_TKC.shape[-1]
    x: Tensor | TensorDescriptor = hidden.values
    if hidden.scales_DT is not None:
        x = TensorDescriptor.from_tensor(hidden.values, [tile.rows, BLOCK])
    capacity = blocks.experts_B.numel() * triton.cdiv(outputs, tile.columns * tile.halves)
    row_stride, block_stride = scale_strides(down)
    _down_weighted[(capacity,)](
        x,
        hidden.scales_DT,
        matrices_of(down, tile),
        down.scales_BD,
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
        down.scales_BD.stride(0),
        row_stride,
        block_stride,
        outputs,
        intermediate,
        IS_WHOLE=intermediate % BLOCK == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        HALVES=tile.halves,
        BLOCK=BLOCK,
        TOGETHER=num_together(down.numbers.matrix_OC),
        PER_OUTPUT=down.is_per_output,
        IS_ROUNDED=hidden.scales_DT is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit(do_not_specialize=["num_pairs"])
def _down_weighted(
    x,
    x_scales_ptr,
    matrices,
    scales_ptr,
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
    expert_stride,
    row_stride,
    block_stride,
    outputs,
    inputs,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
):
    """Each row's expert output times the weight of its choice, to its place in out[T, K, C].

    x: a pointer, or a tensor map of float8 numbers.
    """
    tiles_per_block = (outputs + COLUMNS * HALVES - 1) // (COLUMNS * HALVES)
    tile = tl.program_id(0)
    if tile >= tl.load(num_blocks_ptr) * tiles_per_block:
        return
    block, column_tile = place_of(
        tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
    )
    first_column = column_tile * COLUMNS * HALVES
    start = tl.load(block_starts_ptr + block)
    row = start + tl.arange(0, ROWS)
    is_row = row < tl.load(block_ends_ptr + block)
    # Rows past the block's end are another expert's, or the last: only their own results, which
    # are dropped, see them.
    real_row = tl.minimum(row, num_pairs - 1)
    expert = tl.load(block_experts_ptr + block)
    first_row = expert * outputs + first_column
    expert_scales_ptr = scales_ptr + expert.to(tl.int64) * expert_stride
    depth = tl.arange(0, BLOCK)
    scale_ptr = expert_scales_ptr + scale_places(
        first_column, row_stride, outputs - 1, BLOCK, PER_OUTPUT, COLUMNS
    )
    scales = tl.load(scale_ptr)
    total = empty_total(ROWS, COLUMNS)
    if HALVES == 2:
        other_ptr = expert_scales_ptr + scale_places(
            first_column + COLUMNS, row_stride, outputs - 1, BLOCK, PER_OUTPUT, COLUMNS
        )
        other_scales = tl.load(other_ptr)
        other_total = empty_total(ROWS, COLUMNS)
    if IS_ROUNDED:
        x_scale_ptr = x_scales_ptr + real_row
        x_scales = tl.load(x_scale_ptr)
    num_k_blocks = (inputs + BLOCK - 1) // BLOCK

    for k_block in range(num_k_blocks):
        k = k_block * BLOCK
        following = tl.minimum(k_block + 1, num_k_blocks - 1)
        if IS_ROUNDED:
            numbers = x.load([start, k])
        else:
            x_row_ptr = x + real_row.to(tl.int64)[:, None] * inputs + (k + depth)[None, :]
            numbers, x_scales = round_rows(load_rows(x_row_ptr, k + depth, inputs, IS_WHOLE))
        factor = scale_factor(x_scales, scales, ROWS, PER_OUTPUT)
        if HALVES == 2:
            other_factor = scale_factor(x_scales, other_scales, ROWS, PER_OUTPUT)
            other_scales = tl.load(other_ptr + following * block_stride)
        scales = tl.load(scale_ptr + following * block_stride)
        if IS_ROUNDED:
            x_scales = tl.load(x_scale_ptr + following * num_pairs)

        total = add_block(total, numbers, matrices.load([first_row, k]), factor, ROWS)
        if HALVES == 2:
            other_matrix = matrices.load([first_row + COLUMNS, k])
            other_total = add_block(other_total, numbers, other_matrix, other_factor, ROWS)

    pair = tl.load(pairs_ptr + row, mask=is_row, other=0)
    weights = tl.load(weights_ptr + pair, mask=is_row, other=0.0)
    column = first_column + tl.arange(0, COLUMNS)
    _store_weighted(out_ptr, total, weights, pair, column, is_row, outputs, ROWS)
    if HALVES == 2:
        column += COLUMNS
        _store_weighted(out_ptr, other_total, weights, pair, column, is_row, outputs, ROWS)


@triton.jit
def _store_weighted(out_ptr, total, weights, pair, column, is_row, outputs, ROWS: tl.constexpr):
    """Store a tile, each row times the weight of its choice."""
    if ROWS < MIN_LEFT_ROWS:
        total = total.T
    total *= weights[:, None]
    out_row_ptr = out_ptr + pair.to(tl.int64)[:, None] * outputs + column[None, :]
    is_out = is_row[:, None] & (column < outputs)[None, :]
    tl.store(out_row_ptr, total.to(out_ptr.dtype.element_ty), mask=is_out)
