# mypy: disable-error-code="no-untyped-def"
"""Split-KV attention of a few query tokens per row over paged keys and values.

On Hopper plain attention in bf16 takes `decode_shares`. Elsewhere the keys of a row that its window
shows are divided into splits, each read by its own program for all query heads of a KV head at
once; a second kernel weighs the splits (Flash-Decoding). Lengths and tables are read on the device,
so the launches of a bucket can be captured in a CUDA graph and replayed.

Legend: T tokens of the step, B tiles (a few query tokens of one row), R rows of the block tables, N
pages of a block table, Q query heads, D head dim, P pages, L layers of the KV group, H KV heads, S
tokens per page, X splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.decode_shares import MAX_SHARED_ROWS, decode_by_shares
from raydix.kernels.attention.decode_tiles import DecodeTiles, check_tiles
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.hopper_blocks import fits
from raydix.kernels.attention.paged_inputs import check_paged_inputs
from raydix.kernels.attention.scores import (
    check_form,
    first_maximum_and_total,
    kv_scales,
    scaled_scores,
    score_scales,
)
from raydix.kernels.attention.split_combine import combine_splits
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead

MAX_TILE_ROWS = 128
"""The most query rows of a tile: its tokens times the query heads of a KV head."""
_MAX_WIDE_TILE_ROWS = 64
"""The same for heads of more than _WIDE_DIM dims, which fill shared memory."""
_WIDE_DIM = 256
PROGRAMS_PER_SM = 4
"""More programs than run at a time: as contexts differ, one that ends early takes another split."""
_FEW_PROGRAMS = 32
"""The number of programs so small that most multiprocessors idle, whatever the keys."""


def paged_decode(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles: DecodeTiles,
    *,
    form: AttentionForm,
    num_splits: int,
    out_TQD: Tensor,
) -> None:
    """Attend for the tiles' tokens, into their rows of `out_TQD`; all others are left alone.

    q, pool and out: bf16 or float32 (IEEE arithmetic), contiguous in D; the pool may be of FP8.
    block_tables_RN: int32; pages wholly behind the window are not read. num_splits: where
    `decode_shares` does not serve. The softmax is in float32. Raises ValueError if a shape, dtype
    or stride differs.
    """
    check_paged_inputs(q_TQD, pool_PLH2SD, layer, block_tables_RN, out_TQD)
    _, _, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    check_form(form, q_TQD.shape[1], num_heads)
    check_tiles(tiles, num_splits)
    num_tiles, num_query_heads = len(tiles.rows_B), q_TQD.shape[1]
    group = num_query_heads // num_heads
    tile_rows = tiles.tokens_per_tile * group
    _check_tile_rows(tiles, group, head_dim)
    if num_tiles == 0:
        return
    if fits(q_TQD, pool_PLH2SD, form) and tile_rows <= MAX_SHARED_ROWS:
        decode_by_shares(
            q_TQD, pool_PLH2SD, layer, block_tables_RN, tiles, form=form, out_TQD=out_TQD
        )
        return

    is_float32 = q_TQD.dtype == torch.float32
    block_rows = max(16, triton.next_power_of_2(tile_rows))
    block_dim = max(16, triton.next_power_of_2(head_dim))
    is_wide = block_dim > 128
    num_tile_tokens = num_tiles * tiles.tokens_per_tile
    scale_log2, cap_log2 = score_scales(form)
    partial_XTQD = q_TQD.new_empty(
        (num_splits, num_tile_tokens, num_query_heads, head_dim), dtype=torch.float32
    )
    lse_XTQ = q_TQD.new_empty((num_splits, num_tile_tokens, num_query_heads), dtype=torch.float32)

    _decode_split[(num_heads, num_splits, num_tiles)](
        q_TQD,
        pool_PLH2SD,
        block_tables_RN,
        tiles.rows_B,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD if num_splits == 1 else partial_XTQD,
        lse_XTQ,
        form.sinks_Q,
        form.scales_of(pool_PLH2SD),
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        pool_PLH2SD.stride(0),
        layer * pool_PLH2SD.stride(1),
        block_tables_RN.stride(0),
        scale_log2,
        cap_log2,
        form.window,
        QUERY_HEADS=num_query_heads,
        GROUP=group,
        TILE_TOKENS=tiles.tokens_per_tile,
        PAGE=page_size,
        DIM=head_dim,
        BLOCK_DIM=block_dim,
        BLOCK_ROWS=block_rows,
        BLOCK_KEYS=block_keys(is_float32=is_float32, block_dim=block_dim),
        PRECISION="ieee" if is_float32 else None,
        MIN_BLOCKS=_min_blocks(num_tiles * num_heads),
        IS_WHOLE=num_splits == 1,
        STAGES=2 if is_float32 or is_wide else 3,
        num_warps=8 if is_wide and block_rows > 32 else 4,
        **early_launch(q_TQD.device),
    )
    if num_splits > 1:
        combine_splits(partial_XTQD, lse_XTQ, tiles, out_TQD)


def _check_tile_rows(tiles: DecodeTiles, group: int, head_dim: int) -> None:
    most = MAX_TILE_ROWS if head_dim <= _WIDE_DIM else _MAX_WIDE_TILE_ROWS
    if tiles.tokens_per_tile * group > most:
        raise ValueError(
            f"A tile of {tiles.tokens_per_tile} tokens with {group} query heads of {head_dim} dims "
            f"each; expected at most {most} in product."
        )


def _min_blocks(num_programs: int) -> int:
    """Blocks of keys that are worth a split of their own, with so many programs without splits."""
    return 1 if num_programs <= _FEW_PROGRAMS else 4


def block_keys(*, is_float32: bool, block_dim: int) -> int:
    """Keys at a time; shared memory holds two or three stages of them, beside the queries."""
    if is_float32:
        return 16 if block_dim > 128 else 32
    return 32 if block_dim > _WIDE_DIM else 64


@triton.jit(do_not_specialize=["table_stride"])
def _decode_split(
    q_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    lse_ptr,
    sinks_ptr,
    scales_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    page_stride,
    layer_offset,
    table_stride,
    scale_log2,
    cap_log2,
    window,
    QUERY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One split of one tile and KV head: query rows are (token, query head of the group)."""
    let_next_come(EARLY)
    head = tl.program_id(0)
    split = tl.program_id(1)
    tile = tl.program_id(2)
    context = tl.load(contexts_ptr + tile).to(tl.int32)
    count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
    first_token = tl.load(tokens_ptr + tile).to(tl.int64)
    table_ptr = tables_ptr + tl.load(rows_ptr + tile).to(tl.int64) * table_stride

    first_key = 0
    if window is not None:
        first_key = tl.maximum(context - count + 1 - window, 0)
    first_block = first_key // BLOCK_KEYS
    num_blocks = tl.cdiv(context, BLOCK_KEYS) - first_block
    # Of few keys the last splits get none.
    num_splits = tl.minimum(tl.num_programs(1), tl.cdiv(num_blocks, MIN_BLOCKS))
    split_keys = tl.cdiv(num_blocks, tl.maximum(num_splits, 1)) * BLOCK_KEYS
    start = first_block * BLOCK_KEYS + split * split_keys
    stop = tl.minimum(start + split_keys, context)
    head_ptr = pool_ptr + layer_offset + head.to(tl.int64) * (2 * PAGE * DIM)
    wait_for_ahead(EARLY)

    row = tl.arange(0, BLOCK_ROWS)
    token = row // GROUP
    query_head = head * GROUP + row % GROUP
    is_query = (token < count) & (token < TILE_TOKENS) & (context > 0)
    tile_token = (split * tl.num_programs(2) + tile).to(tl.int64) * TILE_TOKENS + token
    if start >= stop:
        # The logarithm of a sum of nothing says that there is nothing to read.
        if not IS_WHOLE:
            nothing = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
            tl.store(lse_ptr + tile_token * QUERY_HEADS + query_head, nothing, mask=is_query)
        return

    dim = tl.arange(0, BLOCK_DIM)
    is_dim = dim < DIM
    q_row_ptr = q_ptr + (first_token + token) * q_token_stride + query_head * q_head_stride
    q = tl.load(
        q_row_ptr[:, None] + dim[None, :], mask=is_query[:, None] & is_dim[None, :], other=0.0
    )
    # The last key that each query sees; rows of padding see what the last token sees.
    last_key = context - tl.maximum(count - token, 1)
    k_scale, v_scale = kv_scales(scales_ptr, head, tl.num_programs(0))

    maximum, total = first_maximum_and_total(sinks_ptr, query_head, float("-inf"), BLOCK_ROWS)
    if sinks_ptr is not None:
        # A sink joins once, as a key of the first split.
        maximum = tl.where(split == 0, maximum, float("-inf"))
        total = tl.where(split == 0, total, 0.0)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    for begin in tl.range(start, stop, BLOCK_KEYS, num_stages=STAGES):
        key = begin + tl.arange(0, BLOCK_KEYS)
        is_key = key < stop
        if window is not None:
            # A page before the window may be any page, with NaN in it.
            is_key &= key >= first_key
        if PAGE >= BLOCK_KEYS:
            page = tl.load(table_ptr + begin // PAGE).to(tl.int64)
            cell_ptr = (
                head_ptr + page * page_stride + (begin % PAGE + tl.arange(0, BLOCK_KEYS)) * DIM
            )
        else:
            pages = tl.load(table_ptr + key // PAGE, mask=is_key, other=0).to(tl.int64)
            cell_ptr = head_ptr + pages * page_stride + key % PAGE * DIM
        kv_ptr = cell_ptr[:, None] + dim[None, :]
        is_kv = is_key[:, None] & is_dim[None, :]
        # Of FP8 every number is one of the queries' dtype, too.
        k = tl.load(kv_ptr, mask=is_kv, other=0.0).to(q.dtype)
        v = tl.load(kv_ptr + PAGE * DIM, mask=is_kv, other=0.0).to(q.dtype)
        scores = scaled_scores(
            tl.dot(q, tl.trans(k), input_precision=PRECISION), scale_log2 * k_scale, cap_log2
        )
        is_visible = is_key[None, :] & (key[None, :] <= last_key[:, None])
        if window is not None:
            is_visible &= key[None, :] > last_key[:, None] - window
        scores = tl.where(is_visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A query may see no key of a split at all: then the maximum stays -inf, and -inf - -inf
        # would be NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(maximum - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        maximum = new_maximum

    is_out = is_query[:, None] & is_dim[None, :]
    total = tl.where(total == 0.0, 1.0, total)
    result = acc * v_scale / total[:, None]
    if IS_WHOLE:
        out_row_ptr = (
            out_ptr + (first_token + token) * out_token_stride + query_head * out_head_stride
        )
        tl.store(
            out_row_ptr[:, None] + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=is_out
        )
    else:
        out_row_ptr = out_ptr + (tile_token * QUERY_HEADS + query_head) * DIM
        # A query of a tile may see none of the split's keys.
        is_out &= (maximum > float("-inf"))[:, None]
        tl.store(out_row_ptr[:, None] + dim[None, :], result, mask=is_out)
        tl.store(
            lse_ptr + tile_token * QUERY_HEADS + query_head, maximum + tl.log2(total), mask=is_query
        )
