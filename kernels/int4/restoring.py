# mypy: disable-error-code="no-untyped-def"
"""A matrix of four bits as floats in scratch, for products of so many tokens that it is cheap.

Legend: O outputs, C inputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.device.early_launch import early_launch, wait_for_inputs
from raydix.kernels.int4.form import WORD
from raydix.kernels.int4.int4_dot import ONES, floats_of, load_words
from raydix.kernels.int4.tiles import step_depth
from raydix.kernels.int4.weight_inputs import words_of
from raydix.kernels.weights.int4_weight import Int4Weight

_ROWS = 64


def restore(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The matrix [O, C], bit for bit as `reference.int4_linear.restore` has it."""
    outputs, inputs = weight.numbers.matrix_OC.shape[0], weight.num_inputs
    out_OC = torch.empty((outputs, inputs), dtype=dtype, device=weight.numbers.matrix_OC.device)
    depth = step_depth(weight.form.inputs)
    _restore[(triton.cdiv(outputs, _ROWS), triton.cdiv(inputs, depth))](
        words_of(weight),
        weight.scales_GO,
        weight.zeros_GO,
        out_OC,
        outputs,
        inputs,
        inputs // WORD,
        triton.cdiv(weight.group, depth),
        ONES,
        IS_WHOLE=inputs % depth == 0,
        ROWS=_ROWS,
        DEPTH=depth,
        num_warps=4,
        **early_launch(out_OC.device),
    )
    return out_OC


@triton.jit(do_not_specialize=["ones"])
def _restore(
    words_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    outputs,
    inputs,
    row_words,
    group_steps,
    ones,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One step of inputs of some outputs."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    step = tl.program_id(1)
    real_row = tl.minimum(row, outputs - 1).to(tl.int64)
    row_ptr = words_ptr + real_row[:, None] * row_words
    words = load_words(row_ptr, step * DEPTH, row_words, DEPTH, IS_WHOLE)
    place = (step // group_steps).to(tl.int64) * outputs + real_row
    scales, zeros = tl.load(scales_ptr + place), tl.load(zeros_ptr + place)

    floats = floats_of(words, zeros, scales, ones, out_ptr.dtype.element_ty)
    column = step * DEPTH + tl.arange(0, DEPTH)
    is_out = (row < outputs)[:, None] & (column < inputs)[None, :]
    tl.store(out_ptr + real_row[:, None] * inputs + column[None, :], floats, mask=is_out)
