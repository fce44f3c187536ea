# mypy: disable-error-code="no-untyped-def"
"""Attention over latents for blocks of 64 query rows, in bf16: what matrix units bound.

The same computation as `latent_attention`, in Gluon, which lets us say what Triton decides badly:
both warp groups share the scores instead of computing them twice, and the next keys are asked for
before these are multiplied (128 heads, 64 x 8,192 tokens: MEASURED against 260 TFLOP/s, H200,
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

BLOCK_ROWS = 64
"""Query rows of a program: their sums of 512 values fill the registers of eight warps."""
NUM_WARPS = 8
_VALUE_DIMS, _REST_DIM = (128, 256, 512), 64
_CAPABILITY = 9
"""Of Hopper, whose matrix instructions these are."""


def is_wide_enough(pool_PLSD: Tensor, value_dim: int) -> bool:
    """Does `attend_wide` know such latents, and the device its instructions?"""
    return (
        pool_PLSD.dtype == torch.bfloat16
        and value_dim in _VALUE_DIMS
        and pool_PLSD.shape[3] - value_dim == _REST_DIM
        and pool_PLSD.is_cuda
        and torch.cuda.get_device_capability(pool_PLSD.device)[0] == _CAPABILITY
    )


@gluon.jit
def _load_tile(tile, rows_ptr, tokens_ptr, contexts_ptr, counts_ptr):
    """As in `latent_attention`."""
    if tokens_ptr is None:
        row = gl.load(rows_ptr + tile * 4)
        first_token = gl.load(rows_ptr + tile * 4 + 1)
        count = gl.load(rows_ptr + tile * 4 + 2)
        context = gl.load(rows_ptr + tile * 4 + 3) + count
    else:
        row = gl.load(rows_ptr + tile)
        first_token = gl.load(tokens_ptr + tile)
        count = 1 if counts_ptr is None else gl.load(counts_ptr + tile).to(gl.int32)
        context = gl.load(contexts_ptr + tile).to(gl.int32)
    return row.to(gl.int64), first_token.to(gl.int64), count, context


@gluon.jit
def _find_pages(table_ptr, begin, stop, PAGE: gl.constexpr, layout: gl.constexpr):
    """The page of each key of the block that starts at `begin`; 0 past `stop`."""
    key = begin + gl.arange(0, 64, layout=layout)
    return gl.load(table_ptr + key // PAGE, mask=key < stop, other=0)


@gluon.jit
def _copy_latents(
    smem,
    layer_ptr,
    pages,
    begin,
    stop,
    page_stride,
    PAGE: gl.constexpr,
    DIM: gl.constexpr,
    FIRST: gl.constexpr,
    COUNT: gl.constexpr,
    layout: gl.constexpr,
):
    """Ask for dims FIRST to FIRST + COUNT of a block of latents; those past `stop` become zero."""
    key = begin + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    dim = FIRST + gl.arange(0, COUNT, layout=gl.SliceLayout(0, layout))
    slot_ptr = layer_ptr + pages.to(gl.int64) * page_stride + key % PAGE * DIM
    is_key = gl.expand_dims(key < stop, 1)
    async_copy.async_copy_global_to_shared(
        smem, gl.expand_dims(slot_ptr, 1) + gl.expand_dims(dim, 0), mask=is_key
    )


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
    """One split of one block of a tile's query rows; VALUE and DIM - VALUE are powers of two."""
    REST: gl.constexpr = DIM - VALUE
    value_copy: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    rest_copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, VALUE // 2, 16])
    rows_of_scores: gl.constexpr = gl.SliceLayout(1, scores_layout)
    rows_of_acc: gl.constexpr = gl.SliceLayout(1, acc_layout)

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

    q_value = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [64, VALUE], shared)
    q_rest = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [64, REST], shared)
    weights_smem = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [64, 64], shared)
    value = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [2, 64, VALUE], shared)
    rest = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [2, 64, REST], shared)

    value_pages = _find_pages(table_ptr, start, stop, PAGE, gl.SliceLayout(1, value_copy))
    rest_pages = _find_pages(table_ptr, start, stop, PAGE, gl.SliceLayout(1, rest_copy))
    _copy_latents(
        value.index(0),
        layer_ptr,
        value_pages,
        start,
        stop,
        page_stride,
        PAGE,
        DIM,
        0,
        VALUE,
        value_copy,
    )
    _copy_latents(
        rest.index(0),
        layer_ptr,
        rest_pages,
        start,
        stop,
        page_stride,
        PAGE,
        DIM,
        VALUE,
        REST,
        rest_copy,
    )
    async_copy.commit_group()
    value_pages = _find_pages(table_ptr, start + 64, stop, PAGE, gl.SliceLayout(1, value_copy))
    rest_pages = _find_pages(table_ptr, start + 64, stop, PAGE, gl.SliceLayout(1, rest_copy))

    _load_queries(
        q_value,
        q_ptr,
        first_token,
        first_row,
        count,
        context,
        q_token_stride,
        q_head_stride,
        HEADS,
        TILE_TOKENS,
        0,
        VALUE,
        value_copy,
    )
    _load_queries(
        q_rest,
        q_ptr,
        first_token,
        first_row,
        count,
        context,
        q_token_stride,
        q_head_stride,
        HEADS,
        TILE_TOKENS,
        VALUE,
        REST,
        rest_copy,
    )

    token = (first_row + gl.arange(0, 64, layout=rows_of_scores)) // HEADS
    # The last key that each query sees; rows of padding see what the last token sees.
    last_key = context - gl.maximum(count - token, 1)
    maximum = gl.full([64], float("-inf"), gl.float32, layout=rows_of_scores)
    total = gl.full([64], 0.0, gl.float32, layout=rows_of_scores)
    running = warpgroup_mma_init(gl.full([64, VALUE], 0.0, gl.float32, layout=acc_layout))
    no_scores = gl.full([64, 64], 0.0, gl.float32, layout=scores_layout)
    buffer = 0
    for begin in range(start, stop, 64):
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        scores_token = warpgroup_mma(
            q_rest, rest.index(buffer).permute((1, 0)), no_scores, use_acc=False, is_async=True
        )
        scores_token = warpgroup_mma(
            q_value, value.index(buffer).permute((1, 0)), scores_token, is_async=True
        )

        # The last block's values have been multiplied: its place is free for the next block.
        acc = warpgroup_mma_wait(num_outstanding=2, deps=[running])
        gl.thread_barrier()
        following = begin + 64
        _copy_latents(
            value.index(1 - buffer),
            layer_ptr,
            value_pages,
            following,
            stop,
            page_stride,
            PAGE,
            DIM,
            0,
            VALUE,
            value_copy,
        )
        _copy_latents(
            rest.index(1 - buffer),
            layer_ptr,
            rest_pages,
            following,
            stop,
            page_stride,
            PAGE,
            DIM,
            VALUE,
            REST,
            rest_copy,
        )
        async_copy.commit_group()
        value_pages = _find_pages(
            table_ptr, following + 64, stop, PAGE, gl.SliceLayout(1, value_copy)
        )
        rest_pages = _find_pages(
            table_ptr, following + 64, stop, PAGE, gl.SliceLayout(1, rest_copy)
        )

        scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores_token]) * scale_log2
        key = begin + gl.arange(0, 64, layout=gl.SliceLayout(0, scores_layout))
        is_visible = gl.expand_dims(key, 0) <= gl.expand_dims(last_key, 1)
        is_visible &= gl.expand_dims(key < stop, 0)
        scores = gl.where(is_visible, scores, float("-inf"))
        new_maximum = gl.maximum(maximum, gl.max(scores, 1))
        # A query may see no key of a split at all: then the maximum stays -inf, and -inf - -inf
        # would be NaN.
        shift = gl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = gl.exp2(scores - gl.expand_dims(shift, 1))
        decay = gl.exp2(maximum - shift)
        total = total * decay + gl.sum(weights, 1)
        maximum = new_maximum

        weights_smem.store(weights.to(q_ptr.dtype.element_ty))
        acc = acc * gl.expand_dims(gl.convert_layout(decay, rows_of_acc), 1)
        fence_async_shared()
        gl.thread_barrier()
        running = warpgroup_mma(weights_smem, value.index(buffer), acc, is_async=True)
        buffer = 1 - buffer

    acc = warpgroup_mma_wait(num_outstanding=0, deps=[running])
    async_copy.wait_group(0)
    total = gl.where(total == 0.0, 1.0, total)
    result = acc / gl.expand_dims(gl.convert_layout(total, rows_of_acc), 1)

    row = first_row + gl.arange(0, 64, layout=rows_of_acc)
    dim = gl.arange(0, VALUE, layout=gl.SliceLayout(0, acc_layout))
    token = row // HEADS
    head = row % HEADS
    is_query = (token < count) & (token < TILE_TOKENS) & (context > 0)
    if IS_WHOLE:
        out_row_ptr = out_ptr + (first_token + token) * out_token_stride + head * out_head_stride
    else:
        slot = (split * gl.num_programs(2) + tile).to(gl.int64) * TILE_TOKENS + token
        out_row_ptr = out_ptr + (slot * HEADS + head) * VALUE
        lse = gl.convert_layout(maximum + gl.log2(total), rows_of_acc)
        gl.store(lse_ptr + slot * HEADS + head, lse, mask=is_query)
    gl.store(
        gl.expand_dims(out_row_ptr, 1) + gl.expand_dims(dim, 0),
        result.to(out_ptr.dtype.element_ty),
        mask=gl.expand_dims(is_query, 1),
    )


@gluon.jit
def _load_queries(
    smem,
    q_ptr,
    first_token,
    first_row,
    count,
    context,
    q_token_stride,
    q_head_stride,
    HEADS: gl.constexpr,
    TILE_TOKENS: gl.constexpr,
    FIRST: gl.constexpr,
    COUNT: gl.constexpr,
    layout: gl.constexpr,
):
    """Store dims FIRST to FIRST + COUNT of a block of query rows; rows of padding are zero."""
    row = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    dim = FIRST + gl.arange(0, COUNT, layout=gl.SliceLayout(0, layout))
    token = row // HEADS
    is_query = (token < count) & (token < TILE_TOKENS) & (context > 0)
    q_row_ptr = q_ptr + (first_token + token) * q_token_stride + row % HEADS * q_head_stride
    q = gl.load(
        gl.expand_dims(q_row_ptr, 1) + gl.expand_dims(dim, 0),
        mask=gl.expand_dims(is_query, 1),
        other=0.0,
    )
    smem.store(q)
