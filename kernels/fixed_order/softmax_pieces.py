# mypy: disable-error-code="no-untyped-def"
"""The softmax over a piece of a context's keys, and how pieces are joined in their order.

A state is the maximum of the scores, in units of log2, the total of the weights, and the sum of the
values that they weigh. Legend: as in `attention`.
"""

import triton
import triton.language as tl

from raydix.kernels.attention.scores import scaled_scores


@triton.jit
def join(state, piece):
    """The maximum, total and sum of values of two sets of keys; the second ones come later."""
    maximum, total, acc = state
    piece_maximum, piece_total, piece_acc = piece
    both = tl.maximum(maximum, piece_maximum)
    # Where no key was seen, nothing is weighed.
    reference = tl.where(both == float("-inf"), 0.0, both)
    old, new = tl.exp2(maximum - reference), tl.exp2(piece_maximum - reference)
    total = total * old + piece_total * new
    acc = acc * tl.expand_dims(old, -1) + piece_acc * tl.expand_dims(new, -1)
    return both, total, acc


@triton.jit
def mean(state, sink_log2):
    """The mean of the values, to whose weights a sink adds its own."""
    maximum, total, acc = state
    if sink_log2 is not None:
        both = tl.maximum(maximum, sink_log2)
        decay = tl.exp2(maximum - both)
        total = total * decay + tl.exp2(sink_log2 - both)
        acc = acc * tl.expand_dims(decay, -1)
    # A row of padding has seen no key.
    total = tl.where(total == 0.0, 1.0, total)
    return acc / tl.expand_dims(total, -1)


@triton.jit
def visible_from(stop, count, window):
    """The first key that any of the last `count` of `stop` tokens sees."""
    first = stop * 0
    if window is not None:
        first = tl.maximum(stop - count + 1 - window, 0)
    return first


@triton.jit
def attend_piece(
    q,
    pool_ptr,
    table_ptr,
    positions,
    begin,
    end,
    first_key,
    stop,
    page_stride,
    scale_log2,
    cap_log2,
    window,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The state of each query after the keys from `begin` to `end`, which may have seen none."""
    dim = tl.arange(0, BLOCK_DIM)
    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for first in range(begin, end, BLOCK_KEYS):
        key = first + tl.arange(0, BLOCK_KEYS)
        is_key = (key < stop) & (key >= first_key)
        pages = tl.load(table_ptr + key // PAGE, mask=is_key, other=0).to(tl.int64)
        kv_ptr = pool_ptr + (pages * page_stride + key % PAGE * DIM)[:, None] + dim[None, :]
        is_kv = is_key[:, None] & (dim < DIM)[None, :]
        k = tl.load(kv_ptr, mask=is_kv, other=0.0)
        v = tl.load(kv_ptr + PAGE * DIM, mask=is_kv, other=0.0)

        products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        scores = scaled_scores(products, scale_log2, cap_log2)
        is_visible = key[None, :] <= positions[:, None]
        if window is not None:
            is_visible &= key[None, :] > positions[:, None] - window
        scores = tl.where(is_visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - reference[:, None])
        decay = tl.exp2(maximum - reference)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
        maximum = new_maximum
    return maximum, total, acc
