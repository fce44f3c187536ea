# mypy: disable-error-code="no-untyped-def"
"""The hidden layer of experts in float8.

Legend: as in `scaled_experts`.
"""

import torch
import triton
import triton.language as tl

from raydix.kernels.dense.activation import activate, glu_constants, offset_up
from raydix.kernels.dense.glu_form import GluForm
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


def compute_hidden(
    rows: Rows,
    gate_up: ScaledWeight,
    blocks: ExpertBlocks,
    tile: ScaledTile,
    hidden: Rows,
    *,
    choices: int,
    form: GluForm,
    dtype: torch.dtype,
) -> None:
    """Fill the hidden layer of all pairs, in the order of `blocks`: rounded, if it has scales.

    choices: the number of pairs of a token. dtype: that of the model, to which hidden layers are
    rounded before.
    """
    num_pairs, intermediate = hidden.values.shape
    kind, slope, limit = glu_constants(form)
    capacity = blocks.experts_B.numel() * triton.cdiv(intermediate, tile.columns)
    row_stride, block_stride = scale_strides(gate_up)
    _gate_up_glu[(capacity,)](
        rows.values,
        rows.scales_DT,
        matrices_of(gate_up, tile),
        gate_up.scales_BD,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        hidden.values,
        hidden.scales_DT,
        rows.values.shape[0],
        num_pairs,
        rows.values.stride(0),
        gate_up.scales_BD.stride(0),
        row_stride,
        block_stride,
        rows.values.shape[1],
        intermediate,
        CHOICES=choices,
        IS_WHOLE=rows.values.shape[1] % BLOCK == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        BLOCK=BLOCK,
        TOGETHER=num_together(gate_up.numbers.matrix_OC),
        PER_OUTPUT=gate_up.is_per_output,
        KIND=kind,
        SLOPE=slope,
        LIMIT=limit,
        DTYPE=tl.bfloat16 if dtype == torch.bfloat16 else tl.float32,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit(do_not_specialize=["num_tokens", "num_pairs"])
def _gate_up_glu(
    x_ptr,
    x_scales_ptr,
    matrices,
    scales_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    hidden_ptr,
    hidden_scales_ptr,
    num_tokens,
    num_pairs,
    x_stride,
    expert_stride,
    row_stride,
    block_stride,
    inputs,
    intermediate,
    CHOICES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOGETHER: tl.constexpr,
    PER_OUTPUT: tl.constexpr,
    KIND: tl.constexpr,
    SLOPE: tl.constexpr,
    LIMIT: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """A tile of the hidden layer, rows in the order of `pairs`: rounded, if that has scales."""
    tiles_per_block = (intermediate + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0)
    if tile >= tl.load(num_blocks_ptr) * tiles_per_block:
        return
    block, column_tile = place_of(
        tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
    )
    first_column = column_tile * COLUMNS
    row = tl.load(block_starts_ptr + block) + tl.arange(0, ROWS)
    is_row = row < tl.load(block_ends_ptr + block)
    # Rows past the block's end read token 0: only their own results, which are dropped, depend
    # on it.
    token = tl.load(pairs_ptr + row, mask=is_row, other=0) // CHOICES
    depth = tl.arange(0, BLOCK)
    x_row_ptr = x_ptr + token.to(tl.int64)[:, None] * x_stride + depth[None, :]
    expert = tl.load(block_experts_ptr + block)
    gate_row = expert * 2 * intermediate + first_column
    expert_scales_ptr = scales_ptr + expert.to(tl.int64) * expert_stride
    gate_ptr = expert_scales_ptr + scale_places(
        first_column, row_stride, intermediate - 1, BLOCK, PER_OUTPUT, COLUMNS
    )
    up_ptr = expert_scales_ptr + scale_places(
        intermediate + first_column, row_stride, 2 * intermediate - 1, BLOCK, PER_OUTPUT, COLUMNS
    )
    gate_scales, up_scales = tl.load(gate_ptr), tl.load(up_ptr)
    if x_scales_ptr is not None:
        x_scale_ptr = x_scales_ptr + token
        x_scales = tl.load(x_scale_ptr)
    gate, up = empty_total(ROWS, COLUMNS), empty_total(ROWS, COLUMNS)
    num_k_blocks = (inputs + BLOCK - 1) // BLOCK

    for k_block in range(num_k_blocks):
        k = k_block * BLOCK
        following = tl.minimum(k_block + 1, num_k_blocks - 1)
        numbers = load_rows(x_row_ptr + k, k + depth, inputs, IS_WHOLE)
        if x_scales_ptr is None:
            numbers, x_scales = round_rows(numbers)
        gate_factor = scale_factor(x_scales, gate_scales, ROWS, PER_OUTPUT)
        up_factor = scale_factor(x_scales, up_scales, ROWS, PER_OUTPUT)
        gate_scales = tl.load(gate_ptr + following * block_stride)
        up_scales = tl.load(up_ptr + following * block_stride)
        if x_scales_ptr is not None:
            x_scales = tl.load(x_scale_ptr + following * num_tokens)

        gate = add_block(gate, numbers, matrices.load([gate_row, k]), gate_factor, ROWS)
        up_matrix = matrices.load([gate_row + intermediate, k])
        up = add_block(up, numbers, up_matrix, up_factor, ROWS)

    hidden = (activate(gate, KIND, SLOPE, LIMIT) * offset_up(up, KIND, LIMIT)).to(DTYPE)
    if ROWS < MIN_LEFT_ROWS:
        hidden = hidden.T
    column = first_column + tl.arange(0, COLUMNS)
    hidden_row_ptr = hidden_ptr + row.to(tl.int64)[:, None] * intermediate + column[None, :]
    is_out = is_row[:, None] & (column < intermediate)[None, :]
    if hidden_scales_ptr is None:
        tl.store(hidden_row_ptr, hidden, mask=is_out)
    else:
        tl.static_assert(COLUMNS == BLOCK)
        hidden = tl.where((column < intermediate)[None, :], hidden, 0.0)
        numbers, scales = round_rows(hidden)
        tl.store(hidden_row_ptr, numbers, mask=is_out)
        scale_ptr = hidden_scales_ptr + column_tile.to(tl.int64) * num_pairs + row
        tl.store(scale_ptr, scales, mask=is_row)
