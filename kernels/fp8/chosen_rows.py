# mypy: disable-error-code="no-untyped-def"
"""The inputs of experts as float8, one row for each choice, in the order of their experts.

Legend: T tokens, K experts per token, X = T x K pairs, C hidden, D blocks of inputs.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.fp8.expert_inputs import Rows
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.rounding import round_rows
from raydix.kernels.moe.permute import ExpertBlocks

_ROWS, _BLOCKS = 16, 4
"""The rows of a program, and the blocks of each."""


def round_chosen(x_TC: Tensor, blocks: ExpertBlocks, rows: Rows) -> None:
    """Round the token of each pair as `rounding.round_inputs` does, in the order of `blocks`.

    x: bf16 or float32. Rows past the last block's end stay as they are.
    """
    numbers_XC, scales_DX = rows.values, rows.scales_DT
    assert scales_DX is not None
    num_pairs, size = numbers_XC.shape
    num_blocks = triton.cdiv(size, BLOCK)
    _round_chosen[(triton.cdiv(num_pairs, _ROWS), triton.cdiv(num_blocks, _BLOCKS))](
        x_TC,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.ends_B,
        numbers_XC,
        scales_DX,
        x_TC.stride(0),
        scales_DX.stride(0),
        size,
        num_blocks,
        CHOICES=num_pairs // x_TC.shape[0],
        ROWS=_ROWS,
        BLOCKS=_BLOCKS,
        BLOCK=BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["block_stride"])
def _round_chosen(
    x_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_ends_ptr,
    numbers_ptr,
    scales_ptr,
    x_stride,
    block_stride,
    size,
    num_blocks,
    CHOICES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Some blocks of some rows."""
    last = tl.load(num_blocks_ptr) - 1
    num_rows = tl.load(block_ends_ptr + last, mask=last >= 0, other=0)
    if tl.program_id(0) * ROWS >= num_rows:
        return
    part = tl.arange(0, ROWS * BLOCKS)
    row = tl.program_id(0) * ROWS + part // BLOCKS
    block = tl.program_id(1) * BLOCKS + part % BLOCKS
    is_row = (row < num_rows) & (block < num_blocks)
    token = (tl.load(pairs_ptr + row, mask=row < num_rows, other=0) // CHOICES).to(tl.int64)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_column = is_row[:, None] & (column < size)

    x = tl.load(x_ptr + token[:, None] * x_stride + column, mask=is_column, other=0.0)
    numbers, scales = round_rows(x)
    tl.store(numbers_ptr + row.to(tl.int64)[:, None] * size + column, numbers, mask=is_column)
    tl.store(scales_ptr + block.to(tl.int64) * block_stride + row, scales, mask=is_row)
