# mypy: disable-error-code="no-untyped-def"
"""One step of inputs in a product with weights of four bits: what all kernels of them add up.

A step has DEPTH inputs of one group. They are multiplied in an order of their own, in which each
thread of a tensor core's operand makes floats of the words that it loads: a thread has four words
of a row, which lie side by side, so that no float changes its place through shared memory. Inputs
of tokens are loaded in the same order, two at a time. What a row of the tile is has an order as
well: `loaded_column`. Other layouts than those that the compiler takes today would be slower, not
wrong.

Legend: R rows of tokens, N outputs of a tile, W = DEPTH / 8 words of eight numbers.
"""

import triton
import triton.language as tl

from raydix.kernels.int4 import form

_HALF = tl.constexpr(form.HALF)
_BLOCK = tl.constexpr(form.BLOCK)
_RUN = tl.constexpr(32)
"""The inputs whose words a thread has: 16 bytes."""

ONES = 0x4B000000
"""The bits of 2 to the power of 23 as a float32, whose last bits count ones.

Kernels get it as an argument: what a compiler knows it splits into two instructions a number.
"""


@triton.jit
def input_places(DEPTH: tl.constexpr):
    """The inputs of a step in the order in which `ordered_floats` has them, [DEPTH]."""
    runs: tl.constexpr = DEPTH // _RUN
    place = tl.arange(0, DEPTH)
    pair = place // (2 * runs)
    in_block = pair // 2 % 2 * _HALF + pair // 4 % 2 * 4 + pair % 2 * 2 + place % 2
    return place // 2 % runs * _RUN + pair // 8 * _BLOCK + in_block


@triton.jit
def loaded_column(COLUMNS: tl.constexpr, WARPS: tl.constexpr):
    """Which outputs of a tile are loaded, so that `ordered_floats` has them in order, [N].

    A warp loads eight rows at a time, and has 16 of an operand.
    """
    row = tl.arange(0, COLUMNS)
    time = row // (8 * WARPS)
    return time // 2 * (16 * WARPS) + row // 8 % WARPS * 16 + time % 2 * 8 + row % 8


@triton.jit
def load_inputs(row_ptr, is_row, k, place, inputs, IS_WHOLE: tl.constexpr):
    """A step's inputs in the order of `place`, [R, DEPTH]; zeros past the last, and in rows that
    are none.

    row_ptr: each row's first input, and is_row, [R, 1]. IS_WHOLE: all steps are.
    """
    is_input = is_row
    if not IS_WHOLE:
        is_input = is_row & (k + place < inputs)[None, :]
    # What is not loaded costs nothing, while a row in place of others would be loaded as often, by
    # all programs at once.
    return tl.load(row_ptr + (k + place)[None, :], mask=is_input, other=0.0)


@triton.jit
def load_words(row_ptr, k, row_words, DEPTH: tl.constexpr, IS_WHOLE: tl.constexpr):
    """A step's words of some outputs, [N, W]. row_ptr: each output's first word, [N, 1]."""
    word = k // 8 + tl.arange(0, DEPTH // 8)
    if IS_WHOLE:
        words = tl.load(row_ptr + word[None, :])
    else:
        words = tl.load(row_ptr + word[None, :], mask=(word < row_words)[None, :], other=0)
    return words.to(tl.uint32, bitcast=True)


@triton.jit
def _floats_at(words, BIT: tl.constexpr, zero, scales, ones):
    """(number - zero point) * scale of the numbers from a bit on, in float32, [N, W].

    A number in a float's bits is that float without a conversion, or a shift: the float is that
    whose bits count ones from BIT on.
    """
    raised = ((words & (15 << BIT)) | (ones - (BIT << 23))).to(tl.float32, bitcast=True)
    return (raised - (zero + float(1 << (23 - BIT)))[:, None]) * scales[:, None]


@triton.jit
def _halves(words, BIT: tl.constexpr, zero, scales, ones, dtype: tl.constexpr):
    """The floats of the low halves of four bytes, or of the high ones: [N, W, 2, 2].

    The last dimension is the half of a word, the one before it the byte in that.
    """
    upper = words >> 16
    first = tl.join(
        _floats_at(words, BIT, zero, scales, ones), _floats_at(words, BIT + 8, zero, scales, ones)
    )
    second = tl.join(
        _floats_at(upper, BIT, zero, scales, ones), _floats_at(upper, BIT + 8, zero, scales, ones)
    )
    return tl.join(first.to(dtype), second.to(dtype))


@triton.jit
def _floats(words, zeros, scales, ones, dtype: tl.constexpr):
    """(number - zero point) * scale, rounded once: what `reference.int4_linear.restore` makes.

    words: [N, W]; zeros: uint8 and scales: float32, [N]. The result, [N, W, 2, 2, 2], has the byte
    of half a word, the half of the word and the half of the byte last.
    """
    zero = zeros.to(tl.float32)
    low = _halves(words, 0, zero, scales, ones, dtype)
    return tl.join(low, _halves(words, 4, zero, scales, ones, dtype))


@triton.jit
def floats_of(words, zeros, scales, ones, dtype: tl.constexpr):
    """A step's floats in the order of inputs, [N, DEPTH]."""
    rows: tl.constexpr = words.shape[0]
    num_words: tl.constexpr = words.shape[1]
    floats = _floats(words, zeros, scales, ones, dtype)
    floats = floats.reshape(rows, num_words // 2, 2, 2, 2, 2).permute(0, 1, 5, 2, 4, 3)
    return floats.reshape(rows, num_words * 8)


@triton.jit
def ordered_floats(words, zeros, scales, ones, dtype: tl.constexpr, WARPS: tl.constexpr):
    """A step's floats in the order of `input_places`, [N, DEPTH]; rows are those of the tile, if
    those of `loaded_column` were loaded."""
    rows: tl.constexpr = words.shape[0]
    num_words: tl.constexpr = words.shape[1]
    floats = _floats(words, zeros, scales, ones, dtype)
    floats = floats.reshape(rows // (16 * WARPS), 2, WARPS, 8, num_words // 4, 4, 2, 2, 2)
    return floats.permute(0, 2, 1, 3, 5, 8, 7, 4, 6).reshape(rows, num_words * 8)


@triton.jit
def add_step(total, x, words, zeros, scales, ones, WARPS: tl.constexpr, PRECISION: tl.constexpr):
    """Add the product of a step's weights and inputs to total, [N, R]."""
    floats = ordered_floats(words, zeros, scales, ones, x.dtype, WARPS)
    return tl.dot(floats, x.T, total, input_precision=PRECISION)
