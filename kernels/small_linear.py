# mypy: disable-error-code="no-untyped-def"
"""A linear layer of a few tokens, which takes as long as reading its weights.

The weights of a split of the inputs stream through shared memory, and ahead of that into L2. That
begins before the kernel ahead on the stream has ended: weights do not depend on it.

Legend: T tokens, C inputs, O outputs, S splits of the inputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from raydix.kernels.early_launch import early_launch
from raydix.kernels.summands import add_up

MAX_TOKENS = 32
_NARROW = 16
"""The narrow side of a tensor core's tile."""
_LINE = tl.constexpr(64)
"""Weights of a line of L2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """How a product is divided among programs. Sums depend on `depth` and `splits`."""

    rows: int
    """Outputs of a program."""
    depth: int
    """Inputs at a time."""
    splits: int
    num_warps: int
    num_stages: int
    ahead: int
    """How many times `depth` inputs are on their way into L2 before their turn."""
    is_late: bool = False
    """Whether the next kernel comes when this one is nearly done, and not when it begins."""


_WIDE_OUTPUTS = 8192
"""From here on there are enough rows for every multiprocessor."""
_WIDE = LinearShape(rows=64, depth=128, splits=1, num_warps=4, num_stages=4, ahead=8)
_OTHER = LinearShape(rows=16, depth=512, splits=1, num_warps=4, num_stages=3, ahead=2)


def fits(x_TC: Tensor, weight_OC: Tensor) -> bool:
    """Is `small_linear` made for this product?"""
    shape = _shape_of(weight_OC)
    return (
        x_TC.dtype == torch.bfloat16
        and x_TC.shape[0] <= MAX_TOKENS
        and weight_OC.shape[0] % shape.rows == 0
        and weight_OC.shape[1] % shape.depth == 0
    )


def _shape_of(weight_OC: Tensor) -> LinearShape:
    return _WIDE if weight_OC.shape[0] >= _WIDE_OUTPUTS else _OTHER


def small_linear(x_TC: Tensor, weight_OC: Tensor) -> Tensor:
    """x times the transposed weights, [T, O]; sums in float32. See `small_linear_summands`."""
    out = small_linear_summands(x_TC, weight_OC)
    return out if out.dim() == 2 else add_up(out, x_TC.dtype)


def small_linear_summands(x_TC: Tensor, weight_OC: Tensor) -> Tensor:
    """x times the transposed weights: [T, O], or float32 summands of it, [S, T, O].

    bfloat16, at most MAX_TOKENS tokens, contiguous in C. Raises ValueError if a shape, dtype or
    stride differs.
    """
    if weight_OC.dtype != torch.bfloat16 or weight_OC.dim() != 2 or not weight_OC.is_contiguous():
        raise ValueError(
            f"Weights are {weight_OC.dtype} {tuple(weight_OC.shape)}; expected contiguous "
            f"bfloat16 [O, C]."
        )
    if (
        x_TC.dim() != 2
        or x_TC.shape[1] != weight_OC.shape[1]
        or x_TC.stride(1) != 1
        or not fits(x_TC, weight_OC)
    ):
        shape = _shape_of(weight_OC)
        raise ValueError(
            f"x is {x_TC.dtype} {tuple(x_TC.shape)}, the weights {tuple(weight_OC.shape)}; "
            f"expected bfloat16, at most {MAX_TOKENS} tokens, outputs in multiples of "
            f"{shape.rows} and inputs of {shape.depth}."
        )
    if not x_TC.shape[0]:
        return x_TC.new_empty((0, weight_OC.shape[0]))
    return multiply(x_TC, weight_OC, _shape_of(weight_OC))


def multiply(x_TC: Tensor, weight_OC: Tensor, shape: LinearShape) -> Tensor:
    """x times the transposed weights, by a shape that suits both; [T, O].

    With several splits [S, T, O] float32, whose sum is the product.
    """
    num_tokens, inputs = x_TC.shape
    outputs = weight_OC.shape[0]
    if shape.splits == 1:
        out = x_TC.new_empty((num_tokens, outputs))
    else:
        out = x_TC.new_empty((shape.splits, num_tokens, outputs), dtype=torch.float32)

    steps = triton.cdiv(inputs, shape.depth)
    _multiply[(outputs // shape.rows, shape.splits)](
        x_TC,
        weight_OC,
        out,
        num_tokens,
        x_TC.stride(0),
        outputs,
        inputs,
        triton.cdiv(steps, shape.splits),
        ROWS=shape.rows,
        DEPTH=shape.depth,
        TOKENS=max(_NARROW, triton.next_power_of_2(num_tokens)),
        AHEAD=shape.ahead,
        IS_LATE=shape.is_late,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        **early_launch(x_TC.device),
    )
    return out


@triton.jit
def _prefetch(line_ptr):
    """Ask for lines, one of each thread."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [line_ptr.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["num_tokens", "split_steps"])
def _multiply(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_tokens,
    x_stride,
    outputs,
    inputs,
    split_steps,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    TOKENS: tl.constexpr,
    AHEAD: tl.constexpr,
    IS_LATE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """ROWS outputs of all tokens. Weights are the left operand: the tokens are the narrow side."""
    first_row = tl.program_id(0) * ROWS
    split = tl.program_id(1)
    start = split * split_steps * DEPTH
    stop = tl.minimum(start + split_steps * DEPTH, inputs)

    row = first_row + tl.arange(0, ROWS)
    line_row_ptr = weight_ptr + row[:, None].to(tl.int64) * inputs
    line_ptr = line_row_ptr + tl.arange(0, DEPTH // _LINE)[None, :] * _LINE
    if EARLY:
        for step in tl.static_range(AHEAD):
            if start + step * DEPTH < stop:
                _prefetch(line_ptr + (start + step * DEPTH))
        gdc_wait()
        if not IS_LATE:
            gdc_launch_dependents()

    token = tl.arange(0, TOKENS)
    column = tl.arange(0, DEPTH)
    row_ptr = weight_ptr + row[:, None].to(tl.int64) * inputs + column[None, :]
    x_row_ptr = x_ptr + token[None, :] * x_stride + column[:, None]
    is_token = (token < num_tokens)[None, :]
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for begin in tl.range(start, stop, DEPTH):
        if EARLY and AHEAD > 0:
            _prefetch(line_ptr + tl.minimum(begin + AHEAD * DEPTH, stop - DEPTH))
        weight = tl.load(row_ptr + begin, eviction_policy="evict_first")
        x = tl.load(x_row_ptr + begin, mask=is_token, other=0.0)
        total = tl.dot(weight, x, total)
    if EARLY and IS_LATE:
        gdc_launch_dependents()

    out_row_ptr = out_ptr + split.to(tl.int64) * num_tokens * outputs
    out_row_ptr += token[None, :] * outputs + row[:, None]
    tl.store(out_row_ptr, total.to(out_ptr.dtype.element_ty), mask=is_token)
