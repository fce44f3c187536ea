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
def scale_places(
    first, row_stride, last, BLOCK: tl.constexpr, PER_OUTPUT: tl.constexpr, N: tl.constexpr
):
    """Where scales of a tile's outputs are, from `first` on: one for all of a block, or [N].

    Past the last output they are those of the last.
    """
    if PER_OUTPUT:
        places = tl.minimum(first + tl.arange(0, N), last) * row_stride
    else:
        places = tl.minimum(first, last) // BLOCK * row_stride
    return places


@triton.jit
def empty_total(ROWS: tl.constexpr, N: tl.constexpr):
    """Zeros to which `add_block` adds: [N, ROWS] if rows are few, else [ROWS, N]."""
    return tl.zeros([N, ROWS] if ROWS < MIN_LEFT_ROWS else [ROWS, N], tl.float32)


@triton.jit
def scale_factor(x_scales, scales, ROWS: tl.constexpr, PER_OUTPUT: tl.constexpr):
    """What multiplies the product of a block, of the shape of `empty_total` or to be repeated."""
    if ROWS < MIN_LEFT_ROWS:
        if PER_OUTPUT:
            factor = scales[:, None] * x_scales[None, :]
        else:
            factor = (scales * x_scales)[None, :]
    else:
        if PER_OUTPUT:
            factor = x_scales[:, None] * scales[None, :]
        else:
            factor = (x_scales * scales)[:, None]
    return factor


@triton.jit
def add_block(total, x, weights, factor, ROWS: tl.constexpr):
    """Add the product of x [R, BLOCK] and weights [N, BLOCK], times `factor`.

    That is to be known before, from scales that were loaded a block ahead: what multiplies would
    wait for them.
    """
    if ROWS < MIN_LEFT_ROWS:
        product = tl.dot(weights, x.T)
    else:
        product = tl.dot(x, weights.T)
    return total + product * factor
