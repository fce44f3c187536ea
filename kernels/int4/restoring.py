# mypy: disable-error-code="no-untyped-def"
"""A matrix of four bits as floats in scratch, for products of so many tokens that it is cheap.

Legend: O outputs, C inputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.device.early_launch import early_launch, wait_for_inputs
from raydix.kernels.int4.form import HALF
from raydix.kernels.int4.int4_dot import floats_of, load_bytes, low_places
from raydix.kernels.int4.tiles import step_depth
from raydix.kernels.weights.int4_weight import Int4Weight

_ROWS = 64


def restore(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The matrix [O, C], bit for bit as `reference.int4_linear.restore` has it."""
    outputs, inputs = weight.numbers.matrix_OC.shape[0], weight.num_inputs
    out_OC = torch.empty((outputs, inputs), dtype=dtype, device=weight.numbers.matrix_OC.device)
    depth = step_depth(weight.form.inputs)
    _restore[(triton.cdiv(outputs, _ROWS), triton.cdiv(inputs, depth))](
        weight.numbers.matrix_OC,
        weight.scales_GO,
        weight.zeros_GO,
        out_OC,
        outputs,
        inputs,
        weight.group,
        IS_WHOLE=inputs % depth == 0,
        ROWS=_ROWS,
        DEPTH=depth,
        HALF=HALF,
        num_warps=4,
        **early_launch(out_OC.device),
    )
    return out_OC


@triton.jit
def _restore(
    numbers_ptr,
    scales_ptr,
    zeros_ptr,
    out_ptr,
    outputs,
    inputs,
    group,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    HALF: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One step of inputs of some outputs."""
    wait_for_inputs(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * DEPTH
    real_row = tl.minimum(row, outputs - 1).to(tl.int64)
    numbers = load_bytes(
        numbers_ptr + real_row[:, None] * (inputs // 2), k, inputs, DEPTH, IS_WHOLE
    )
    place = (k // group).to(tl.int64) * outputs + real_row
    scales, zeros = tl.load(scales_ptr + place), tl.load(zeros_ptr + place)

    dtype = out_ptr.dtype.element_ty
    column = k + low_places(DEPTH)
    low_ptr = out_ptr + real_row[:, None] * inputs + column[None, :]
    is_row = (row < outputs)[:, None]
    # Whole blocks are inputs, so that both halves of a byte are, or none.
    is_out = is_row & (column < inputs)[None, :]
    tl.store(low_ptr, floats_of(numbers & 0xF, zeros, scales, dtype), mask=is_out)
    tl.store(low_ptr + HALF, floats_of(numbers >> 4, zeros, scales, dtype), mask=is_out)
