# mypy: disable-error-code="no-untyped-def"
"""Inputs of a product as float8, with a scale for each token and block of inputs.

Legend: T tokens of the step, C inputs, D blocks of inputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.device.early_launch import early_launch, wait_for_inputs
from raydix.kernels.fp8 import form
from raydix.kernels.fp8.form import BLOCK

_FEW_TOKENS = 64
"""The tokens up to which a program rounds blocks of one alone."""
_FEW_SHAPE, _MANY_SHAPE = (1, 8), (16, 4)
"""The tokens of a program, and the blocks of each. Many tokens have their scales side by side."""
_SMALLEST_MAGNITUDE = tl.constexpr(form.SMALLEST_MAGNITUDE)
_MANTISSA_BITS = tl.constexpr(form.MANTISSA_BITS)
_ROUND_UP = tl.constexpr(form.ROUND_UP)
_LARGEST_EXPONENT = tl.constexpr(form.LARGEST_EXPONENT)


def round_inputs(x_TC: Tensor, *, multiple_of: int = 1) -> tuple[Tensor, Tensor]:
    """Round as `reference.scaled_linear.round_inputs` does, by blocks of 128 inputs.

    x: bf16 or float32, contiguous in C. Returns float8 numbers [T, C] and float32 scales [D, T],
    in which a block of all tokens is one run. multiple_of: what the rows are filled up to, with
    anything. Raises ValueError if a dtype or stride differs.
    """
    check_inputs(x_TC)
    num_tokens, size = x_TC.shape
    num_blocks = triton.cdiv(size, BLOCK)
    num_rows = triton.cdiv(num_tokens, multiple_of) * multiple_of
    numbers_TC = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x_TC.device)
    scales_DT = torch.empty((num_blocks, num_rows), dtype=torch.float32, device=x_TC.device)
    round_into(x_TC, numbers_TC, scales_DT)
    return numbers_TC, scales_DT


def check_inputs(x_TC: Tensor) -> None:
    """Raise ValueError unless these can be rounded."""
    if x_TC.dtype not in (torch.bfloat16, torch.float32) or x_TC.dim() != 2 or x_TC.stride(1) != 1:
        raise ValueError(
            f"Inputs are {x_TC.dtype} {tuple(x_TC.shape)}, strides {x_TC.stride()}; expected "
            "bfloat16 or float32 [T, C], contiguous in C."
        )


def round_into(x_TC: Tensor, numbers_TC: Tensor, scales_DT: Tensor) -> None:
    """Round as `round_inputs` does, into tensors of any strides that have room for it.

    Their rows and blocks may be more; numbers are contiguous in C.
    """
    num_tokens, size = x_TC.shape
    if num_tokens == 0:
        return
    num_blocks = triton.cdiv(size, BLOCK)
    tokens, blocks = _FEW_SHAPE if num_tokens <= _FEW_TOKENS else _MANY_SHAPE
    _round[(triton.cdiv(num_tokens, tokens), triton.cdiv(num_blocks, blocks))](
        x_TC,
        numbers_TC,
        scales_DT,
        num_tokens,
        x_TC.stride(0),
        numbers_TC.stride(0),
        scales_DT.stride(0),
        scales_DT.stride(1),
        size,
        num_blocks,
        TOKENS=tokens,
        BLOCKS=blocks,
        BLOCK=BLOCK,
        num_warps=4,
        **early_launch(x_TC.device),
    )


@triton.jit
def round_rows(x):
    """Rows of one block each as float8 [R, BLOCK], and the scales that multiply them, [R]."""
    x = x.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), 1), _SMALLEST_MAGNITUDE)
    bits = largest.to(tl.int32, bitcast=True)
    exponent = ((bits + _ROUND_UP) >> _MANTISSA_BITS) - _LARGEST_EXPONENT
    scales = (exponent << _MANTISSA_BITS).to(tl.float32, bitcast=True)
    # As they are stored, the exponents of a power of two and of its inverse add up to this.
    inverses = ((254 - exponent) << _MANTISSA_BITS).to(tl.float32, bitcast=True)
    return (x * inverses[:, None]).to(tl.float8e4nv), scales


@triton.jit(do_not_specialize=["num_tokens", "block_stride"])
def _round(
    x_ptr,
    numbers_ptr,
    scales_ptr,
    num_tokens,
    x_stride,
    number_stride,
    block_stride,
    scale_stride,
    size,
    num_blocks,
    TOKENS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some blocks of some tokens: a row is a block of a token."""
    wait_for_inputs(EARLY)
    row = tl.arange(0, TOKENS * BLOCKS)
    token = tl.program_id(0) * TOKENS + row // BLOCKS
    block = tl.program_id(1) * BLOCKS + row % BLOCKS
    is_row = (token < num_tokens) & (block < num_blocks)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_column = (token < num_tokens)[:, None] & (column < size)

    token = token.to(tl.int64)
    x = tl.load(x_ptr + token[:, None] * x_stride + column, mask=is_column, other=0.0)
    numbers, scales = round_rows(x)
    tl.store(numbers_ptr + token[:, None] * number_stride + column, numbers, mask=is_column)
    place = block.to(tl.int64) * block_stride + token * scale_stride
    tl.store(scales_ptr + place, scales, mask=is_row)
