# mypy: disable-error-code="no-untyped-def"
"""A linear layer of float8 weights, whose blocks have a scale each, and of inputs rounded to it.

Products of float8 are added up in float32 within a block of 128 inputs; the sum is multiplied by
both scales. Where outputs are few, several programs share the inputs, and each leaves a summand.

Legend: T tokens, C inputs, O outputs, B blocks of outputs, D blocks of inputs, S summands.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.dense.summands import add_up
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead
from raydix.kernels.device.gpu import capability, num_sms
from raydix.kernels.fp8 import few_hopper, library_product
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.rounding import round_inputs, round_rows
from raydix.kernels.fp8.scaled_dot import (
    MIN_LEFT_ROWS,
    add_block,
    empty_total,
    load_rows,
    scale_factor,
    scale_places,
)
from raydix.kernels.fp8.scaled_tiles import LinearTiles, linear_tiles
from raydix.kernels.fp8.weight_inputs import check_weight, scale_strides
from raydix.kernels.weights.scaled_weight import ScaledWeight

_TOGETHER = 8
"""The tiles of tokens that run one after another for the same outputs, whose weights L2 holds."""


def scaled_linear(x_TC: Tensor, weight: ScaledWeight) -> Tensor:
    """The product with a matrix of blocks, [T, O] in the dtype of x; see `scaled_summands`."""
    out = scaled_summands(x_TC, weight)
    return out if out.dim() == 2 else add_up(out, x_TC.dtype)


def scaled_summands(x_TC: Tensor, weight: ScaledWeight, tiles: LinearTiles | None = None) -> Tensor:
    """The product with a matrix of blocks: [T, O] in the dtype of x, or float32 summands [S, T, O].

    As `reference.scaled_linear.scaled_linear` computes it. x: bf16 or float32, contiguous in C.
    `tiles`: of the kernel for any GPU; None: Hopper has others for few tokens and for many. Raises
    ValueError if a shape, dtype or stride differs.
    """
    check_weight(x_TC, weight)
    (num_tokens, inputs), outputs = x_TC.shape, weight.numbers.matrix_OC.shape[0]
    if tiles is None and few_hopper.fits(x_TC, weight):
        return few_hopper.multiply_few(x_TC, weight)
    if tiles is None and library_product.fits(x_TC, weight):
        return library_product.multiply(x_TC, weight)
    tiles = tiles or linear_tiles(num_tokens)
    sms = 1 if capability(x_TC.device) is None else num_sms(x_TC.device)
    steps, num_summands = tiles.divide(outputs, triton.cdiv(inputs, BLOCK), sms)
    if num_summands == 1:
        out = x_TC.new_empty((num_tokens, outputs))
    else:
        out = x_TC.new_empty((num_summands, num_tokens, outputs), dtype=torch.float32)
    if num_tokens:
        _multiply_into(out, x_TC, weight, tiles, steps)
    return out


def _multiply_into(
    out: Tensor, x_TC: Tensor, weight: ScaledWeight, tiles: LinearTiles, steps: int
) -> None:
    """Fill `out`, of which each summand is that of `steps` blocks of inputs."""
    tile = tiles.tile
    x: Tensor | TensorDescriptor = x_TC
    scales_DT = None
    if tiles.is_rounded_first:
        numbers_TC, scales_DT = round_inputs(x_TC)
        x = TensorDescriptor.from_tensor(numbers_TC, [tile.rows, BLOCK])

    matrix_OC = weight.numbers.matrix_OC
    num_tokens, (outputs, inputs) = x_TC.shape[0], matrix_OC.shape
    num_tiles = triton.cdiv(num_tokens, tile.rows) * triton.cdiv(
        outputs, tile.columns * tile.halves
    )
    row_stride, block_stride = scale_strides(weight)
    _multiply[(num_tiles * triton.cdiv(triton.cdiv(inputs, BLOCK), steps),)](
        x,
        scales_DT,
        TensorDescriptor.from_tensor(matrix_OC, [tile.columns, BLOCK]),
        weight.scales_BD,
        weight.numbers.bias_O,
        out,
        num_tokens,
        x_TC.stride(0),
        row_stride,
        block_stride,
        steps,
        outputs,
        inputs,
        IS_WHOLE=inputs % BLOCK == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        HALVES=tile.halves,
        BLOCK=BLOCK,
        TOGETHER=_TOGETHER,
        PER_OUTPUT=weight.is_per_output,
        IS_ROUNDED=tiles.is_rounded_first,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **early_launch(x_TC.device),
    )


@triton.jit
def _place_of(program, num_rows, num_columns, TOGETHER: tl.constexpr):
    """Which tile of rows, and which of columns, the program has: some rows, column after column."""
    per_group = TOGETHER * num_columns
    first_row = program // per_group * TOGETHER
    rows = tl.minimum(num_rows - first_row, TOGETHER)
    inside = program % per_group
    return first_row + inside % rows, inside // rows


@triton.jit
def _store(
    out_ptr,
    total,
    bias_ptr,
    is_biased,
    row,
    column,
    is_row,
    outputs,
    ROWS: tl.constexpr,
):
    """Store a tile, and add the bias to it, if there is one and it is due."""
    if ROWS < MIN_LEFT_ROWS:
        total = total.T
    is_column = column < outputs
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + column, mask=is_column & is_biased, other=0.0)
        total += bias.to(tl.float32)[None, :]
    out_row_ptr = out_ptr + row.to(tl.int64)[:, None] * outputs + column[None, :]
    is_out = is_row[:, None] & is_column[None, :]
    tl.store(out_row_ptr, total.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=["num_tokens", "steps"])
def _multiply(
    x,
    x_scales_ptr,
    weights,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    x_stride,
    row_stride,
    block_stride,
    steps,
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
    EARLY: tl.constexpr,
):
    """One tile of outputs, or a summand of it. x: a pointer, or a tensor map of float8 numbers."""
    wait_for_ahead(EARLY)
    let_next_come(EARLY)
    num_blocks = (inputs + BLOCK - 1) // BLOCK
    num_columns = (outputs + COLUMNS * HALVES - 1) // (COLUMNS * HALVES)
    num_rows = (num_tokens + ROWS - 1) // ROWS
    summand = tl.program_id(0) // (num_rows * num_columns)
    tile = tl.program_id(0) % (num_rows * num_columns)
    row_tile, column_tile = _place_of(tile, num_rows, num_columns, TOGETHER)

    first_row = row_tile * ROWS
    first_column = column_tile * COLUMNS * HALVES
    row = first_row + tl.arange(0, ROWS)
    depth = tl.arange(0, BLOCK)
    # Rows past the end read the last token: only their own results, which are dropped, see it.
    real_row = tl.minimum(row, num_tokens - 1)
    first_block, last_block = summand * steps, num_blocks - 1
    end_block = tl.minimum(first_block + steps, num_blocks)
    scale_ptr = scales_ptr + scale_places(
        first_column, row_stride, outputs - 1, BLOCK, PER_OUTPUT, COLUMNS
    )
    scales = tl.load(scale_ptr + first_block * block_stride)
    total = empty_total(ROWS, COLUMNS)
    if HALVES == 2:
        other_ptr = scales_ptr + scale_places(
            first_column + COLUMNS, row_stride, outputs - 1, BLOCK, PER_OUTPUT, COLUMNS
        )
        other_scales = tl.load(other_ptr + first_block * block_stride)
        other_total = empty_total(ROWS, COLUMNS)
    if IS_ROUNDED:
        x_scale_ptr = x_scales_ptr + real_row
        x_scales = tl.load(x_scale_ptr + first_block * num_tokens)

    for block in range(first_block, end_block):
        k = block * BLOCK
        following = tl.minimum(block + 1, last_block)
        if IS_ROUNDED:
            numbers = x.load([first_row, k])
        else:
            x_row_ptr = x + real_row.to(tl.int64)[:, None] * x_stride + (k + depth)[None, :]
            numbers, x_scales = round_rows(load_rows(x_row_ptr, k + depth, inputs, IS_WHOLE))
        factor = scale_factor(x_scales, scales, ROWS, PER_OUTPUT)
        if HALVES == 2:
            other_factor = scale_factor(x_scales, other_scales, ROWS, PER_OUTPUT)
            other_scales = tl.load(other_ptr + following * block_stride)
        scales = tl.load(scale_ptr + following * block_stride)
        if IS_ROUNDED:
            x_scales = tl.load(x_scale_ptr + following * num_tokens)

        total = add_block(total, numbers, weights.load([first_column, k]), factor, ROWS)
        if HALVES == 2:
            other_matrix = weights.load([first_column + COLUMNS, k])
            other_total = add_block(other_total, numbers, other_matrix, other_factor, ROWS)

    is_first = summand == 0
    out_ptr += summand.to(tl.int64) * num_tokens * outputs
    column = first_column + tl.arange(0, COLUMNS)
    is_row = row < num_tokens
    _store(out_ptr, total, bias_ptr, is_first, row, column, is_row, outputs, ROWS)
    if HALVES == 2:
        column += COLUMNS
        _store(out_ptr, other_total, bias_ptr, is_first, row, column, is_row, outputs, ROWS)
