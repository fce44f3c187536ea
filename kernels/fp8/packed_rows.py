# mypy: disable-error-code="no-untyped-def"
"""Rows on their way to other ranks, as float8 with their scales.

Legend: as in `reference.packed_rows`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.fp8.form import BLOCK, packed_bytes, scale_bytes
from raydix.kernels.fp8.rounding import check_inputs, round_into

_ROWS, _BLOCKS = 8, 8
"""The rows that a program restores, and the blocks of each."""


def pack_rows(x_TC: Tensor) -> Tensor:
    """Pack rows as `reference.packed_rows.pack_rows` does, but for what they are filled up with.

    x: bf16 or float32, contiguous in C. Raises ValueError if a dtype or stride differs.
    """
    check_inputs(x_TC)
    num_tokens, size = x_TC.shape
    packed_TB = torch.empty((num_tokens, packed_bytes(size)), dtype=torch.uint8, device=x_TC.device)
    round_into(
        x_TC,
        packed_TB.view(torch.float8_e4m3fn)[:, scale_bytes(size) :],
        packed_TB.view(torch.float32).T,
    )
    return packed_TB


def restore_rows(packed_NB: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Restore rows as `reference.packed_rows.restore_rows` does.

    Rows that nobody has written become anything. Raises ValueError if rows are not packed ones of
    `size`, one after another.
    """
    expected = packed_bytes(size)
    if (
        packed_NB.dtype != torch.uint8
        or packed_NB.shape[1:] != (expected,)
        or not packed_NB.is_contiguous()
    ):
        raise ValueError(
            f"Rows are {packed_NB.dtype} {tuple(packed_NB.shape)}, strides {packed_NB.stride()}; "
            f"expected packed ones, uint8 [N, {expected}], contiguous."
        )
    num_rows, num_blocks = packed_NB.shape[0], triton.cdiv(size, BLOCK)
    x_NC = torch.empty((num_rows, size), dtype=dtype, device=packed_NB.device)
    if num_rows:
        _restore[(triton.cdiv(num_rows, _ROWS), triton.cdiv(num_blocks, _BLOCKS))](
            packed_NB.view(torch.float8_e4m3fn),
            packed_NB.view(torch.float32),
            x_NC,
            num_rows,
            SIZE=size,
            ROW_BYTES=expected,
            SCALE_BYTES=scale_bytes(size),
            NUM_BLOCKS=num_blocks,
            ROWS=_ROWS,
            BLOCKS=_BLOCKS,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return x_NC


@triton.jit(do_not_specialize=["num_rows"])
def _restore(
    numbers_ptr,
    scales_ptr,
    x_ptr,
    num_rows,
    SIZE: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some blocks of some rows: a line of a tile is a block of a row."""
    line = tl.arange(0, ROWS * BLOCKS)
    row = tl.program_id(0) * ROWS + line // BLOCKS
    block = tl.program_id(1) * BLOCKS + line % BLOCKS
    exists = (row < num_rows) & (block < NUM_BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_column = exists[:, None] & (column < SIZE)

    row = row.to(tl.int64)
    scales = tl.load(scales_ptr + row * (ROW_BYTES // 4) + block, mask=exists, other=0.0)
    source = row[:, None] * ROW_BYTES + SCALE_BYTES + column
    numbers = tl.load(numbers_ptr + source, mask=is_column, other=0.0).to(tl.float32)
    x = numbers * scales[:, None]
    tl.store(x_ptr + row[:, None] * SIZE + column, x.to(x_ptr.dtype.element_ty), mask=is_column)
