# mypy: disable-error-code="no-untyped-def"
"""Attention over latents for blocks of 64 query rows, in bf16: what matrix units bound.

The same computation as `latent_attention`, in Gluon, which lets us say what Triton decides badly:
both warp groups share the scores instead of computing them twice, and the next keys are asked for
while these are multiplied. With 128 heads, 64 x 8,192 tokens: 341 TFLOP/s against 259 (H200,
2026-11-22).
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.device.gpu import capability

BLOCK_ROWS = 64
"""The query rows of a program: their sums of 512 values fill the registers of eight warps."""
NUM_WARPS = 8
_VALUE_DIMS, _REST_DIM = (128, 256, 512), 64
_CAPABILITY = (9, 0)
"""The compute capability of Hopper, whose matrix instructions this kernel uses."""
_VALUE_COPY = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0]))
_REST_COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))
_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16]))
"""The layout of the scores: each warp group has all query rows and half of the keys."""
_SCORE_ROWS = gl.constexpr(gl.SliceLayout(1, _SCORES.value))


def is_wide_enough(pool_PLSD: Tensor, value_dim: int) -> bool:
    """Does `attend_wide` know such latents, and the device its instructions?"""
    return (
        pool_PLSD.dtype == torch.bfloat16
        and value_dim in _VALUE_DIMS
        and pool_PLSD.shape[3] - value_dim == _REST_DIM
        and capability(pool_PLSD.device) == _CAPABILITY
    )


@gluon.jit
def _load_tile(tile, rows_ptr, tokens_ptr, contexts_ptr, counts_ptr):
    """Load a tile's row, first token, count and context, as `latent_attention` does."""
    if tokens_ptr is None:
        row = gl.load(rows_ptr + tile * 4)
        first_token = gl.load(rows_ptr + tile * 4 + 1)
        count = gl.load(rows_ptr + tile * 4 + 2)
        context = gl.load(rows_ptr + tile * 4 + 3)
    else:
        row = gl.load(rows_ptr + tile)
        first_token = gl.load(tokens_ptr + tile)
        count = 1 if counts_ptr is None else gl.load(counts_ptr + tile).to(gl.int32)
        context = gl.load(contexts_ptr + tile).to(gl.int32)
    return row.to(gl.int64), first_token.to(gl.int64), count, context


@gluon.jit
def _is_query(row, count, context, HEADS: gl.constexpr, TILE_TOKENS: gl.constexpr):
    """Whether each row of a tile is a query (a token and a head) and no padding."""
    token = row // HEADS
    return (token < count) & (token < TILE_TOKENS) & (context > 0)


@gluon.jit
def _find_pages(table_ptr, begin, stop, PAGE: gl.constexpr):
    """The page of each key of the block that starts at `begin`, 0 past `stop`, for both copies."""
    value_key = begin + gl.arange(0, 64, layout=gl.SliceLayout(1, _VALUE_COPY))
    rest_key = begin + gl.arange(0, 64, layout=gl.SliceLayout(1, _REST_COPY))
    value_pages = gl.load(table_ptr + value_key // PAGE, mask=value_key < stop, other=0)
    rest_pages = gl.load(table_ptr + rest_key // PAGE, mask=rest_key < stop, other=0)
    return value_pages, rest_pages


@gluon.jit
def _copy_part(smem, latent_ptr, key, stop, dim):
    is_key = gl.expand_dims(key < stop, 1)
    latent_ptr = gl.expand_dims(latent_ptr, 1) + gl.expand_dims(dim, 0)
    async_copy.async_copy_global_to_shared(smem, latent_ptr, mask=is_key)


@gluon.jit
def _copy_block(
    value,
    rest,
    layer_ptr,
    pages,
    begin,
    stop,
    page_stride,
    PAGE: gl.constexpr,
    DIM: gl.constexpr,
    VALUE: gl.constexpr,
):
    """Ask for the block of latents that starts at `begin`; those past `stop` become zero."""
    value_pages, rest_pages = pages
    key = begin + gl.arange(0, 64, layout=gl.SliceLayout(1, _VALUE_COPY))
    dim = gl.arange(0, VALUE, layout=gl.SliceLayout(0, _VALUE_COPY))
    latent_ptr = layer_ptr + value_pages.to(gl.int64) * page_stride + key % PAGE * DIM
    _copy_part(value, latent_ptr, key, stop, dim)

    key = begin + gl.arange(0, 64, layout=gl.SliceLayout(1, _REST_COPY))
    dim = VALUE + gl.arange(0, DIM - VALUE, layout=gl.SliceLayout(0, _REST_COPY))
    latent_ptr = layer_ptr + rest_pages.to(gl.int64) * page_stride + key % PAGE * DIM
    _copy_part(rest, latent_ptr, key, stop, dim)
    async_copy.commit_group()


@gluon.jit
def _load_part(q_ptr, row, is_query, dim, token_stride, head_stride, HEADS: gl.constexpr):
    q_row_ptr = q_ptr + row // HEADS * token_stride + row % HEADS * head_stride
    is_query = gl.expand_dims(is_query, 1)
    return gl.load(gl.expand_dims(q_row_ptr, 1) + gl.expand_dims(dim, 0), mask=is_query, other=0.0)


@gluon.jit
def _load_queries(
    q_ptr,
    first_row,
    count,
    context,
    token_stride,
    head_stride,
    HEADS: gl.constexpr,
    TILE_TOKENS: gl.constexpr,
    DIM: gl.constexpr,
    VALUE: gl.constexpr,
):
    """A block of query rows, those of padding zero, in shared memory: values' dims, and the rest.

    q_ptr: the tile's first token.
    """
    row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, _VALUE_COPY))
    dim = gl.arange(0, VALUE, layout=gl.SliceLayout(0, _VALUE_COPY))
    is_query = _is_query(row, count, context, HEADS, TILE_TOKENS)
    q = _load_part(q_ptr, row, is_query, dim, token_stride, head_stride, HEADS)
    q_value = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [64, VALUE], _SHARED, q)

    row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, _REST_COPY))
    dim = VALUE + gl.arange(0, DIM - VALUE, layout=gl.SliceLayout(0, _REST_COPY))
    is_query = _is_query(row, count, context, HEADS, TILE_TOKENS)
    q = _load_part(q_ptr, row, is_query, dim, token_stride, head_stride, HEADS)
    q_rest = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [64, DIM - VALUE], _SHARED, q)
    return q_value, q_rest


@gluon.jit
def _weigh(scores, begin, stop, last_key, maximum, totals):
    """One step of the online softmax: weights, the decay of what was summed, and the new state.

    totals: a sum for each key of a block, which saves warps the exchange of theirs.
    """
    key = begin + gl.arange(0, 64, layout=gl.SliceLayout(0, _SCORES))
    is_visible = gl.expand_dims(key, 0) <= gl.expand_dims(last_key, 1)
    is_visible &= gl.expand_dims(key < stop, 0)
    scores = gl.where(is_visible, scores, float("-inf"))
    new_maximum = gl.maximum(maximum, gl.max(scores, 1))

    # A query may see no key of a split at all: then the maximum stays -inf, and -inf - -inf would
    # be NaN.
    shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = gl.exp2(scores - gl.expand_dims(shift, 1))
    decay = gl.exp2(maximum - shift)
    return weights, decay, new_maximum, totals * gl.expand_dims(decay, 1) + weights


@gluon.jit(do_not_specialize=["table_stride"])
def attend_wide(
    q_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    lse_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    page_stride,
    layer_offset,
    table_stride,
    scale_log2,
    HEADS: gl.constexpr,
    TILE_TOKENS: gl.constexpr,
    PAGE: gl.constexpr,
    DIM: gl.constexpr,
    VALUE: gl.constexpr,
    IS_WHOLE: gl.constexpr,
):
    """One split of one block of a tile's query rows."""
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, VALUE // 2, 16])
    acc_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    dtype: gl.constexpr = q_ptr.dtype.element_ty
    first_row = gl.program_id(0) * 64
    split = gl.program_id(1)
    tile = gl.program_id(2)
    table_row, first_token, count, context = _load_tile(
        tile, rows_ptr, tokens_ptr, contexts_ptr, counts_ptr
    )
    table_ptr = tables_ptr + table_row * table_stride
    layer_ptr = pool_ptr + layer_offset

    # A block sees the keys up to those of its last token; without tokens it sees none.
    last_token = gl.minimum((first_row + 63) // HEADS, count - 1)
    end = gl.where(first_row // HEADS < count, context - count + last_token + 1, 0)
    split_keys = gl.cdiv(gl.cdiv(end, 64), gl.num_programs(1)) * 64
    start = split * split_keys
    stop = gl.minimum(start + split_keys, end)

    value = gl.allocate_shared_memory(dtype, [2, 64, VALUE], _SHARED)
    rest = gl.allocate_shared_memory(dtype, [2, 64, DIM - VALUE], _SHARED)
    weights_smem = gl.allocate_shared_memory(dtype, [64, 64], _SHARED)
    pages = _find_pages(table_ptr, start, stop, PAGE)
    _copy_block(
        value.index(0), rest.index(0), layer_ptr, pages, start, stop, page_stride, PAGE, DIM, VALUE
    )
    value_pages, rest_pages = _find_pages(table_ptr, start + 64, stop, PAGE)
    q_value, q_rest = _load_queries(
        q_ptr + first_token * q_token_stride,
        first_row,
        count,
        context,
        q_token_stride,
        q_head_stride,
        HEADS,
        TILE_TOKENS,
        DIM,
        VALUE,
    )

    # The last key that each query sees; rows of padding see what the last token sees.
    token = (first_row + gl.arange(0, 64, layout=_SCORE_ROWS)) // HEADS
    last_key = context - gl.maximum(count - token, 1)
    maximum = gl.full([64], float("-inf"), gl.float32, layout=_SCORE_ROWS)
    totals = gl.full([64, 64], 0.0, gl.float32, layout=_SCORES)
    running = warpgroup_mma_init(gl.full([64, VALUE], 0.0, gl.float32, layout=acc_layout))
    no_scores = gl.full([64, 64], 0.0, gl.float32, layout=_SCORES)
    now = 0
    for begin in range(start, stop, 64):
        async_copy.wait_group(0)
        fence_async_shared()
        thread_barrier()
        rest_T = rest.index(now).permute((1, 0))
        value_T = value.index(now).permute((1, 0))
        asked = warpgroup_mma(q_rest, rest_T, no_scores, use_acc=False, is_async=True)
        asked = warpgroup_mma(q_value, value_T, asked, is_async=True)

        # All but these two products are done: where the last block was, the next has its place.
        acc = warpgroup_mma_wait(num_outstanding=2, deps=[running])
        thread_barrier()
        _copy_block(
            value.index(1 - now),
            rest.index(1 - now),
            layer_ptr,
            (value_pages, rest_pages),
            begin + 64,
            stop,
            page_stride,
            PAGE,
            DIM,
            VALUE,
        )
        value_pages, rest_pages = _find_pages(table_ptr, begin + 128, stop, PAGE)

        scores = warpgroup_mma_wait(num_outstanding=0, deps=[asked]) * scale_log2
        weights, decay, maximum, totals = _weigh(scores, begin, stop, last_key, maximum, totals)
        weights_smem.store(weights.to(dtype))
        acc = acc * gl.expand_dims(gl.convert_layout(decay, acc_rows), 1)
        fence_async_shared()
        thread_barrier()
        running = warpgroup_mma(weights_smem, value.index(now), acc, is_async=True)
        now = 1 - now

    acc = warpgroup_mma_wait(num_outstanding=0, deps=[running])
    async_copy.wait_group(0)
    total = gl.sum(totals, 1)
    total = gl.where(total == 0.0, 1.0, total)
    result = acc / gl.expand_dims(gl.convert_layout(total, acc_rows), 1)

    row = first_row + gl.arange(0, 64, layout=acc_rows)
    is_query = _is_query(row, count, context, HEADS, TILE_TOKENS)
    if IS_WHOLE:
        out_row_ptr = out_ptr + (first_token + row // HEADS) * out_token_stride
        out_row_ptr += row % HEADS * out_head_stride
    else:
        tile_token = (split * gl.num_programs(2) + tile).to(gl.int64) * TILE_TOKENS + row // HEADS
        entry = tile_token * HEADS + row % HEADS
        out_row_ptr = out_ptr + entry * VALUE
        lse = gl.convert_layout(maximum + gl.log2(total), acc_rows)
        gl.store(lse_ptr + entry, lse, mask=is_query)
    dim = gl.arange(0, VALUE, layout=gl.SliceLayout(0, acc_layout))
    gl.store(
        gl.expand_dims(out_row_ptr, 1) + gl.expand_dims(dim, 0),
        result.to(out_ptr.dtype.element_ty),
        mask=gl.expand_dims(is_query, 1),
    )
