# mypy: disable-error-code="no-untyped-def"
"""A linear layer whose sums are in one order, however many tokens there are.

A tensor core adds up the inputs of an output sixteen at a time, from the first to the last, and so
do all tiles here, large or small: no two programs share an output. What the tile's other rows and
columns are changes nothing. Few tokens take narrow tiles, so that all multiprocessors read weights.

Legend: T tokens, C inputs, O outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.device.gpu import num_sms

_TILES_TOGETHER = 8
"""The rows of tiles that are computed side by side, so that L2 keeps what they share."""
_ALIGNMENT_BYTES = 16
"""The size of which rows must be multiples, as tensor maps demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    tokens: int
    outputs: int
    depth: int
    num_warps: int
    num_stages: int


_NARROW = tuple(
    _Tile(tokens=64, outputs=outputs, depth=depth, num_warps=4, num_stages=stages)
    for outputs, depth, stages in ((16, 256, 5), (32, 256, 4), (64, 128, 5), (128, 64, 6))
)
"""Tiles of few tokens: chosen is the widest of which there are enough to read at full speed."""
_SOME = _Tile(tokens=128, outputs=64, depth=64, num_warps=4, num_stages=4)
_MANY = _Tile(tokens=128, outputs=128, depth=64, num_warps=8, num_stages=4)
_WIDE = _Tile(tokens=128, outputs=256, depth=64, num_warps=8, num_stages=3)
_FLOAT32 = _Tile(tokens=32, outputs=32, depth=32, num_warps=4, num_stages=2)


def fits(weight_OC: Tensor) -> bool:
    """Can `fixed_linear` multiply by this matrix?"""
    return weight_OC.shape[1] * weight_OC.element_size() % _ALIGNMENT_BYTES == 0


def fixed_linear(x_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product of x and the transposed weights, plus the bias, [T, O]; sums in float32.

    All bf16 or all float32 (IEEE arithmetic); contiguous in C, rows of multiples of 16 bytes. A
    token's result depends on it and on the weights alone. Raises ValueError if a shape, dtype or
    stride differs.
    """
    _check(x_TC, weight_OC, bias_O)
    num_tokens, (outputs, inputs) = x_TC.shape[0], weight_OC.shape
    out_TO = x_TC.new_empty((num_tokens, outputs))
    if not num_tokens:
        return out_TO
    tile = _choose_tile(num_tokens, outputs, x_TC)
    arguments = {
        "OUTPUTS": outputs,
        "INPUTS": inputs,
        "TOKENS": tile.tokens,
        "COLUMNS": tile.outputs,
        "DEPTH": tile.depth,
        "PRECISION": "ieee" if x_TC.dtype == torch.float32 else None,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
    weights = TensorDescriptor.from_tensor(weight_OC, [tile.outputs, tile.depth])
    if num_tokens <= tile.tokens:
        # A box of a tensor map takes longer the more of it lies outside.
        programs = (triton.cdiv(outputs, tile.outputs),)
        _multiply_few[programs](
            x_TC, weights, bias_O, out_TO, num_tokens, x_TC.stride(0), **arguments
        )
        return out_TO
    num_tiles = triton.cdiv(num_tokens, tile.tokens) * triton.cdiv(outputs, tile.outputs)
    x = TensorDescriptor.from_tensor(x_TC, [tile.tokens, tile.depth])
    _multiply[(num_tiles,)](
        x, weights, bias_O, out_TO, num_tokens, TOGETHER=_TILES_TOGETHER, **arguments
    )
    return out_TO


def _check(x_TC: Tensor, weight_OC: Tensor, bias_O: Tensor | None) -> None:
    if x_TC.dtype not in (torch.bfloat16, torch.float32) or weight_OC.dtype != x_TC.dtype:
        raise ValueError(
            f"x is {x_TC.dtype}, the weights {weight_OC.dtype}; expected one of bfloat16, float32."
        )
    if x_TC.dim() != 2 or weight_OC.dim() != 2 or x_TC.shape[1] != weight_OC.shape[1]:
        raise ValueError(
            f"x is {tuple(x_TC.shape)}, the weights {tuple(weight_OC.shape)}; expected [T, C] and "
            f"[O, C]."
        )
    row_bytes = x_TC.stride(0) * x_TC.element_size()
    if x_TC.stride(1) != 1 or row_bytes % _ALIGNMENT_BYTES or not weight_OC.is_contiguous():
        raise ValueError(
            f"x has strides {x_TC.stride()}, the weights {weight_OC.stride()}; expected rows of "
            f"multiples of {_ALIGNMENT_BYTES} bytes, contiguous in C."
        )
    if not fits(weight_OC):
        raise ValueError(
            f"The weights are {tuple(weight_OC.shape)}; expected rows of multiples of "
            f"{_ALIGNMENT_BYTES} bytes."
        )
    if bias_O is not None and bias_O.shape != weight_OC.shape[:1]:
        raise ValueError(f"The bias is {tuple(bias_O.shape)}; expected [{len(weight_OC)}].")


def _choose_tile(num_tokens: int, outputs: int, x_TC: Tensor) -> _Tile:
    """What is fast for so many tokens; the result does not depend on it."""
    if x_TC.dtype == torch.float32:
        return _FLOAT32
    programs = 1 if x_TC.device.type == "cpu" else num_sms(x_TC.device)
    if num_tokens <= _NARROW[0].tokens:
        wide_enough = [tile for tile in _NARROW if tile.outputs * programs <= outputs]
        return wide_enough[-1] if wide_enough else _NARROW[0]
    for tile in (_WIDE, _MANY):
        if triton.cdiv(num_tokens, tile.tokens) * triton.cdiv(outputs, tile.outputs) >= programs:
            return tile
    return _SOME


@triton.jit
def _write(
    total,
    bias_ptr,
    out_ptr,
    first_token,
    first_column,
    num_tokens,
    OUTPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of the product, to which the bias is added."""
    token = first_token + tl.arange(0, TOKENS)
    column = first_column + tl.arange(0, COLUMNS)
    is_column = column < OUTPUTS
    if bias_ptr is not None:
        total += tl.load(bias_ptr + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_row_ptr = out_ptr + token.to(tl.int64)[:, None] * OUTPUTS + column[None, :]
    is_out = (token < num_tokens)[:, None] & is_column[None, :]
    tl.store(out_row_ptr, total.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_few(
    x_ptr,
    weights,
    bias_ptr,
    out_ptr,
    num_tokens,
    x_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """All tokens, which fit in one tile, and some outputs."""
    first_column = tl.program_id(0) * COLUMNS
    token = tl.arange(0, TOKENS)
    depth = tl.arange(0, DEPTH)
    x_row_ptr = x_ptr + token[:, None] * x_stride + depth[None, :]
    is_token = (token < num_tokens)[:, None]
    total = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for k in range(0, INPUTS, DEPTH):
        x = tl.load(x_row_ptr + k, mask=is_token & (k + depth < INPUTS)[None, :], other=0.0)
        weight = weights.load([first_column, k])
        total = tl.dot(x, weight.T, total, input_precision=PRECISION)
    _write(total, bias_ptr, out_ptr, 0, first_column, num_tokens, OUTPUTS, TOKENS, COLUMNS)


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply(
    inputs,
    weights,
    bias_ptr,
    out_ptr,
    num_tokens,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One tile of the product."""
    program = tl.program_id(0)
    token_tiles = tl.cdiv(num_tokens, TOKENS)
    column_tiles: tl.constexpr = (OUTPUTS + COLUMNS - 1) // COLUMNS
    # Tiles of a few rows of tiles, column after column.
    per_group = TOGETHER * column_tiles
    first_row = program // per_group * TOGETHER
    num_rows = tl.minimum(token_tiles - first_row, TOGETHER)
    first_token = (first_row + program % per_group % num_rows) * TOKENS
    first_column = program % per_group // num_rows * COLUMNS

    total = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for k in range(0, INPUTS, DEPTH):
        x = inputs.load([first_token, k])
        weight = weights.load([first_column, k])
        total = tl.dot(x, weight.T, total, input_precision=PRECISION)
    _write(
        total, bias_ptr, out_ptr, first_token, first_column, num_tokens, OUTPUTS, TOKENS, COLUMNS
    )
