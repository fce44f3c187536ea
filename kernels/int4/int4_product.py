# mypy: disable-error-code="no-untyped-def"
"""A linear layer of weights of four bits: read as they are, and made floats in registers.

Where outputs are few, several programs share the inputs, and each leaves a summand. For many tokens
the matrix is restored in scratch first.

Legend: T tokens, C inputs, O outputs, S summands.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from raydix.kernels.dense.summands import add_up
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead
from raydix.kernels.device.gpu import capability, num_sms
from raydix.kernels.int4.form import WORD
from raydix.kernels.int4.int4_dot import (
    ONES,
    add_step,
    input_places,
    load_inputs,
    load_words,
    loaded_column,
)
from raydix.kernels.int4.restoring import restore
from raydix.kernels.int4.tiles import LinearTiles, linear_tiles, step_depth
from raydix.kernels.int4.weight_inputs import check_weight, words_of
from raydix.kernels.precision import precision_of
from raydix.kernels.weights.int4_weight import Int4Weight


def int4_linear(x_TC: Tensor, weight: Int4Weight) -> Tensor:
    """The product with a matrix of four bits, [T, O] in the dtype of x; see `int4_summands`."""
    out = int4_summands(x_TC, weight)
    return out if out.dim() == 2 else add_up(out, x_TC.dtype)


def int4_summands(x_TC: Tensor, weight: Int4Weight, tiles: LinearTiles | None = None) -> Tensor:
    """The product with a matrix of four bits: [T, O] as x is, or float32 summands [S, T, O].

    As `reference.int4_linear.int4_linear` computes it. x: bf16 or float32, contiguous in C.
    `tiles`: others than those for so many tokens. Raises ValueError if a shape, dtype or stride
    differs.
    """
    check_weight(x_TC, weight)
    tiles = tiles or linear_tiles(len(x_TC))
    if tiles is None:
        return functional.linear(x_TC, restore(weight, x_TC.dtype), weight.numbers.bias_O)

    num_tokens, outputs = len(x_TC), weight.numbers.matrix_OC.shape[0]
    sms = 1 if capability(x_TC.device) is None else num_sms(x_TC.device)
    num_steps = triton.cdiv(weight.num_inputs, step_depth(weight.form.inputs))
    steps, num_summands = tiles.divide(outputs, num_steps, sms)
    if num_summands == 1:
        out = x_TC.new_empty((num_tokens, outputs))
    else:
        out = x_TC.new_empty((num_summands, num_tokens, outputs), dtype=torch.float32)
    if num_tokens:
        _multiply_into(out, x_TC, weight, tiles, steps, num_summands)
    return out


def _multiply_into(
    out: Tensor,
    x_TC: Tensor,
    weight: Int4Weight,
    tiles: LinearTiles,
    steps: int,
    num_summands: int,
) -> None:
    """Fill `out`, of which each summand is that of `steps` steps of inputs."""
    tile, depth = tiles.tile, step_depth(weight.form.inputs)
    num_tokens, outputs, inputs = len(x_TC), weight.numbers.matrix_OC.shape[0], weight.num_inputs
    num_tiles = triton.cdiv(num_tokens, tile.rows) * triton.cdiv(outputs, tile.columns)
    _multiply[(num_tiles * num_summands,)](
        x_TC,
        words_of(weight),
        weight.scales_GO,
        weight.zeros_GO,
        weight.numbers.bias_O,
        out,
        num_tokens,
        x_TC.stride(0),
        steps,
        outputs,
        inputs,
        inputs // WORD,
        triton.cdiv(weight.group, depth),
        ONES,
        IS_WHOLE=inputs % depth == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=depth,
        WARPS=tile.num_warps,
        PRECISION=precision_of(x_TC.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **early_launch(x_TC.device),
    )


@triton.jit(do_not_specialize=["num_tokens", "steps", "ones"])
def _multiply(
    x_ptr,
    words_ptr,
    scales_ptr,
    zeros_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    x_stride,
    steps,
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
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One tile of outputs, or a summand of it. Tiles of tokens follow one another, so that L2 holds
    the weights that they share."""
    num_steps = (inputs + DEPTH - 1) // DEPTH
    num_rows = (num_tokens + ROWS - 1) // ROWS
    num_columns = (outputs + COLUMNS - 1) // COLUMNS
    row_tile = tl.program_id(0) % num_rows
    column_tile = tl.program_id(0) // num_rows % num_columns
    summand = tl.program_id(0) // (num_rows * num_columns)

    row = row_tile * ROWS + tl.arange(0, ROWS)
    is_row = (row < num_tokens)[:, None]
    x_row_ptr = x_ptr + row.to(tl.int64)[:, None] * x_stride
    # Columns past the end read the last: only their own results, which are dropped, see it.
    read_column = column_tile * COLUMNS + loaded_column(COLUMNS, WARPS)
    read_column = tl.minimum(read_column, outputs - 1).to(tl.int64)
    row_ptr = words_ptr + read_column[:, None] * row_words
    place = input_places(DEPTH)
    first, last = summand * steps, num_steps - 1
    group_place = (first // group_steps).to(tl.int64) * outputs + read_column
    scales, zeros = tl.load(scales_ptr + group_place), tl.load(zeros_ptr + group_place)
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    wait_for_ahead(EARLY)
    let_next_come(EARLY)

    for step in range(first, tl.minimum(first + steps, num_steps)):
        k = step * DEPTH
        x = load_inputs(x_row_ptr, is_row, k, place, inputs, IS_WHOLE)
        words = load_words(row_ptr, k, row_words, DEPTH, IS_WHOLE)
        # Scales are loaded a step ahead: what multiplies would wait for them.
        next_group = tl.minimum(step + 1, last) // group_steps
        group_place = next_group.to(tl.int64) * outputs + read_column
        next_scales = tl.load(scales_ptr + group_place)
        next_zeros = tl.load(zeros_ptr + group_place)
        total = add_step(total, x, words, zeros, scales, ones, WARPS, PRECISION)
        scales, zeros = next_scales, next_zeros

    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < outputs
    if bias_ptr is not None:
        is_due = is_column & (summand == 0)
        bias = tl.load(bias_ptr + column, mask=is_due, other=0.0)
        total += bias.to(tl.float32)[:, None]
    out_ptr += summand.to(tl.int64) * num_tokens * outputs
    out_row_ptr = out_ptr + row.to(tl.int64)[:, None] * outputs + column[None, :]
    is_out = is_row & is_column[None, :]
    tl.store(out_row_ptr, total.T.to(out_ptr.dtype.element_ty), mask=is_out)
