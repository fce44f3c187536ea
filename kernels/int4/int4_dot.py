# mypy: disable-error-code="no-untyped-def"
"""One step of inputs in a product with weights of four bits: what all kernels of them add up.

A step has DEPTH inputs of one group. Bytes of the weights become floats in registers: the low half
of each is multiplied by other inputs than the high half, see `form`.

Legend: R rows of tokens, N outputs of a tile, H = DEPTH / 2 bytes.
"""

import triton
import triton.language as tl

from raydix.kernels.int4 import form

_HALF = tl.constexpr(form.HALF)
_BLOCK = tl.constexpr(form.BLOCK)
_MAGIC = tl.constexpr(0x4B000000)
"""The bits of 2 to the power of 23 as a float32, whose last bits count ones."""
_MAGIC_FLOAT = tl.constexpr(float(1 << 23))


@triton.jit
def low_places(DEPTH: tl.constexpr):
    """Which inputs of a step are in the low halves of its bytes, [H]; the high ones: 8 further."""
    byte = tl.arange(0, DEPTH // 2)
    return byte // _HALF * _BLOCK + byte % _HALF


@triton.jit
def load_inputs(row_ptr, k, place, inputs, IS_WHOLE: tl.constexpr):
    """A step's inputs for the low halves and for the high ones, [R, H] each; zeros past the last.

    row_ptr: each row's first input, [R, 1]. IS_WHOLE: all steps are.
    """
    low_ptr = row_ptr + (k + place)[None, :]
    if IS_WHOLE:
        low = tl.load(low_ptr)
        high = tl.load(low_ptr + _HALF)
    else:
        low = tl.load(low_ptr, mask=(k + place < inputs)[None, :], other=0.0)
        high = tl.load(low_ptr + _HALF, mask=(k + place + _HALF < inputs)[None, :], other=0.0)
    return low, high


@triton.jit
def load_bytes(row_ptr, k, inputs, DEPTH: tl.constexpr, IS_WHOLE: tl.constexpr):
    """A step's bytes of some outputs, [N, H]. row_ptr: each output's first byte, [N, 1]."""
    byte = k // 2 + tl.arange(0, DEPTH // 2)
    if IS_WHOLE:
        numbers = tl.load(row_ptr + byte[None, :])
    else:
        numbers = tl.load(row_ptr + byte[None, :], mask=(byte < inputs // 2)[None, :], other=0)
    return numbers


@triton.jit
def floats_of(numbers, zeros, scales, dtype: tl.constexpr):
    """(number - zero point) * scale, rounded once: what `reference.int4_linear.restore` makes.

    numbers: 0 to 15, [N, H]; zeros: uint8 and scales: float32, [N].
    """
    # A number in the last bits of 2 to the power of 23 is a float without a conversion, which is
    # slower than all else here.
    raised = (numbers.to(tl.int32) | _MAGIC).to(tl.float32, bitcast=True)
    zero = zeros.to(tl.float32) + _MAGIC_FLOAT
    return ((raised - zero[:, None]) * scales[:, None]).to(dtype)


@triton.jit
def add_step(total, low, high, numbers, zeros, scales, PRECISION: tl.constexpr):
    """Add the product of a step's weights and inputs to total, [N, R]."""
    dtype = low.dtype
    total = tl.dot(
        floats_of(numbers & 0xF, zeros, scales, dtype), low.T, total, input_precision=PRECISION
    )
    return tl.dot(
        floats_of(numbers >> 4, zeros, scales, dtype), high.T, total, input_precision=PRECISION
    )
