# mypy: disable-error-code="no-untyped-def"
"""One block of inputs in a product of float8: what every kernel of this folder adds up.

Legend: R rows of tokens, N outputs of a tile.
"""

import triton
import triton.language as tl

MIN_LEFT_ROWS = tl.constexpr(64)
"""The number of a tile's rows from which on they are the left operand of the product.

A tensor core's tile is 64 wide on that side, and as narrow as the rows on the other.
"""


@triton.jit
def load_rows(ptr, column, inputs, IS_WHOLE: tl.constexpr):
    """Inputs of one block, [R, BLOCK]; zeros past the last. column: that of each, [BLOCK].

    IS_WHOLE: all blocks are.
    """
    if IS_WHOLE:
        x = tl.load(ptr)
    else:
        x = tl.load(ptr, mask=(column < inputs)[None, :], other=0.0)
    return x


@triton.jit
def load_scales(
    ptr, first, row_stride, last, BLOCK: tl.constexpr, PER_OUTPUT: tl.constexpr, N: tl.constexpr
):
    """Scales of a tile's outputs, from `first` on: one for all of a block, or [N]."""
    if PER_OUTPUT:
        scales = tl.load(ptr + tl.minimum(first + tl.arange(0, N), last) * row_stride)
    else:
        scales = tl.load(ptr + first // BLOCK * row_stride)
    return scales


@triton.jit
def empty_total(ROWS: tl.constexpr, N: tl.constexpr):
    """Zeros to which `add_block` adds: [N, ROWS] if rows are few, else [ROWS, N]."""
    return tl.zeros([N, ROWS] if ROWS < MIN_LEFT_ROWS else [ROWS, N], tl.float32)


@triton.jit
def add_block(total, x, x_scales, weights, scales, ROWS: tl.constexpr, PER_OUTPUT: tl.constexpr):
    """Add the product of x [R, BLOCK] and weights [N, BLOCK], times the scales of both."""
    if ROWS < MIN_LEFT_ROWS:
        product = tl.dot(weights, x.T)
        if PER_OUTPUT:
            factor = scales[:, None] * x_scales[None, :]
        else:
            factor = (scales * x_scales)[None, :]
    else:
        product = tl.dot(x, weights.T)
        if PER_OUTPUT:
            factor = x_scales[:, None] * scales[None, :]
        else:
            factor = (x_scales * scales)[:, None]
    return total + product * factor
