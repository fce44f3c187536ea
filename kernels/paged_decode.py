# mypy: disable-error-code="no-untyped-def"
"""Attention of a few query tokens per row over paged keys and values.

The blocks of keys that tiles see are divided (`equal_shares`) among as many programs of a KV head
as run at a time, each for all query heads of it at once. Lengths and tables are read on the device,
so the launches of a bucket can be captured in a CUDA graph and replayed.

Legend: T tokens of the step, B tiles (a few query tokens of one row), R rows of the block tables, N
pages of a block table, Q query heads, D head dim, P pages, L layers of the KV group, H KV heads, S
slots per page, Y parts of tiles, X rows of a tile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention_form import AttentionForm
from raydix.kernels.attention_scores import (
    check_form,
    first_maximum_and_total,
    scaled_scores,
    score_scales,
)
from raydix.kernels.decode_tiles import DecodeTiles, check_tiles
from raydix.kernels.early_launch import early_launch, let_next_come, wait_for_ahead
from raydix.kernels.equal_shares import (
    divide,
    first_key_of,
    num_blocks,
    num_sms,
    part_of,
    shares_of,
    tile_of,
)
from raydix.kernels.paged_inputs import check_paged_inputs

MAX_TILE_ROWS = 128
"""Query tokens of a tile times query heads per KV head."""
_FEW_ROWS = 16
"""Of a tile; so many programs then fit a multiprocessor, whose bytes on the way are what counts."""
_PROGRAMS_PER_SM, _WIDE_PROGRAMS_PER_SM = 4, 2
_PARTS_TOGETHER = 32
"""Of a row, that are weighed at a time."""
_FEW_PROGRAMS = 32
"""So few leave most multiprocessors idle, whatever their keys."""


def paged_decode(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles: DecodeTiles,
    *,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend for the tiles' tokens, into their rows of `out_TQD`; all others are left alone.

    q, pool and out: bf16 or float32 (IEEE arithmetic), contiguous in D. block_tables_RN: int32;
    pages wholly behind the window are not read. The softmax is in float32. Raises ValueError if a
    shape, dtype or stride differs.
    """
    check_paged_inputs(q_TQD, pool_PLH2SD, layer, block_tables_RN, out_TQD)
    check_form(form, q_TQD.shape[1])
    _, _, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    check_tiles(tiles)
    _check_tile_rows(tiles, q_TQD.shape[1] // num_heads)
    num_tiles, num_query_heads = len(tiles.rows_B), q_TQD.shape[1]
    if num_tiles == 0:
        return

    is_float32 = q_TQD.dtype == torch.float32
    group = num_query_heads // num_heads
    block_rows = max(16, triton.next_power_of_2(tiles.tokens_per_tile * group))
    block_dim = max(16, triton.next_power_of_2(head_dim))
    is_wide = block_dim > 128
    scale_log2, cap_log2 = score_scales(form)
    per_sm = _PROGRAMS_PER_SM if block_rows <= _FEW_ROWS else _WIDE_PROGRAMS_PER_SM
    num_shares = max(per_sm * num_sms(q_TQD.device) // num_heads, 1)
    parts_size = (2 * num_shares, num_heads, block_rows)
    parts_YHXD = q_TQD.new_empty((*parts_size, head_dim), dtype=torch.float32)
    lse_YHX = q_TQD.new_empty(parts_size, dtype=torch.float32)
    division = {
        "TILE_TOKENS": tiles.tokens_per_tile,
        "MIN_BLOCKS": _min_blocks(num_tiles * num_heads, block_rows),
        "BLOCK_KEYS": _block_keys(is_float32, is_wide),
        "GROUP": group,
        "DIM": head_dim,
        "BLOCK_DIM": block_dim,
        "BLOCK_ROWS": block_rows,
    }

    _decode_share[(num_heads, num_shares)](
        q_TQD,
        pool_PLH2SD,
        block_tables_RN,
        tiles.rows_B,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD,
        parts_YHXD,
        lse_YHX,
        form.sinks_Q,
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        pool_PLH2SD.stride(0),
        layer * pool_PLH2SD.stride(1),
        block_tables_RN.stride(0),
        num_tiles,
        scale_log2,
        cap_log2,
        form.window,
        PAGE=page_size,
        PRECISION="ieee" if is_float32 else None,
        STAGES=2 if is_float32 or is_wide else 3,
        **division,
        num_warps=8 if is_wide and block_rows > 32 else 4,
        # So many registers leave room for all programs; of wide heads and many rows fewer fit.
        maxnreg=None if is_float32 or is_wide or block_rows > _FEW_ROWS else 128,
        **early_launch(q_TQD.device),
    )
    _weigh_parts[(num_tiles, tiles.tokens_per_tile, num_query_heads)](
        parts_YHXD,
        lse_YHX,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD,
        out_TQD.stride(0),
        out_TQD.stride(1),
        num_shares,
        form.window,
        PARTS=_PARTS_TOGETHER,
        **division,
        num_warps=4,
        **early_launch(q_TQD.device),
    )


def _check_tile_rows(tiles: DecodeTiles, group: int) -> None:
    if tiles.tokens_per_tile * group > MAX_TILE_ROWS:
        raise ValueError(
            f"A tile of {tiles.tokens_per_tile} tokens with {group} query heads each; expected at "
            f"most {MAX_TILE_ROWS} in product."
        )


def _min_blocks(num_programs: int, block_rows: int) -> int:
    """Blocks of keys that are worth a part of so many rows, with so many tiles and KV heads."""
    return max(1 if num_programs <= _FEW_PROGRAMS else 4, block_rows // 32)


def _block_keys(is_float32: bool, is_wide: bool) -> int:
    """Keys at a time; shared memory holds two or three stages of them."""
    if is_float32:
        return 16 if is_wide else 32
    return 64


@triton.jit(do_not_specialize=["table_stride", "num_tiles"])
def _decode_share(
    q_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    parts_ptr,
    lse_ptr,
    sinks_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    page_stride,
    layer_offset,
    table_stride,
    num_tiles,
    scale_log2,
    cap_log2,
    window,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One share of a KV head: query rows of a tile are (token, query head of the group)."""
    let_next_come(EARLY)
    head = tl.program_id(0)
    share = tl.program_id(1)
    all_blocks, share_blocks = divide(
        contexts_ptr, counts_ptr, num_tiles, tl.num_programs(1), window, 1, BLOCK_KEYS, MIN_BLOCKS
    )
    begin = share * share_blocks
    stop_share = tl.minimum(begin + share_blocks, all_blocks)
    tile, tile_begin = tile_of(begin, contexts_ptr, counts_ptr, num_tiles, window, 1, BLOCK_KEYS)

    row = tl.arange(0, BLOCK_ROWS)
    token = row // GROUP
    query_head = head * GROUP + row % GROUP
    dim = tl.arange(0, BLOCK_DIM)
    is_dim = dim < DIM
    head_ptr = pool_ptr + layer_offset + head.to(tl.int64) * (2 * PAGE * DIM)
    wait_for_ahead(EARLY)
    while begin < stop_share:
        context = tl.load(contexts_ptr + tile).to(tl.int32)
        count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
        first_token = tl.load(tokens_ptr + tile).to(tl.int64)
        table_ptr = tables_ptr + tl.load(rows_ptr + tile).to(tl.int64) * table_stride
        tile_stop = tile_begin + num_blocks(context, count, window, BLOCK_KEYS)
        part_stop = tl.minimum(tile_stop, stop_share)
        first_key = first_key_of(context, count, window)
        first_block = first_key // BLOCK_KEYS - tile_begin
        start = (first_block + begin) * BLOCK_KEYS
        stop = tl.minimum((first_block + part_stop) * BLOCK_KEYS, context)
        is_first = begin == tile_begin
        is_last = part_stop == tile_stop

        is_query = (token < count) & (token < TILE_TOKENS) & (context > 0)
        q_row_ptr = q_ptr + (first_token + token) * q_token_stride + query_head * q_head_stride
        q = tl.load(
            q_row_ptr[:, None] + dim[None, :], mask=is_query[:, None] & is_dim[None, :], other=0.0
        )
        # The last key that each query sees; rows of padding see what the last token sees.
        last_key = context - tl.maximum(count - token, 1)

        maximum, total = first_maximum_and_total(sinks_ptr, query_head, float("-inf"), BLOCK_ROWS)
        if sinks_ptr is not None:
            # A sink joins once, as a key of the first part.
            maximum = tl.where(is_first, maximum, float("-inf"))
            total = tl.where(is_first, total, 0.0)
        acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
        for block_key in tl.range(start, stop, BLOCK_KEYS, num_stages=STAGES):
            key = block_key + tl.arange(0, BLOCK_KEYS)
            is_key = key < stop
            if window is not None:
                # A page before the window may be any page, with NaN in it.
                is_key &= key >= first_key
            if PAGE >= BLOCK_KEYS:
                page = tl.load(table_ptr + block_key // PAGE).to(tl.int64)
                slot = block_key % PAGE + tl.arange(0, BLOCK_KEYS)
                slot_ptr = head_ptr + page * page_stride + slot * DIM
            else:
                pages = tl.load(table_ptr + key // PAGE, mask=is_key, other=0).to(tl.int64)
                slot_ptr = head_ptr + pages * page_stride + key % PAGE * DIM
            kv_ptr = slot_ptr[:, None] + dim[None, :]
            is_kv = is_key[:, None] & is_dim[None, :]
            k = tl.load(kv_ptr, mask=is_kv, other=0.0)
            v = tl.load(kv_ptr + PAGE * DIM, mask=is_kv, other=0.0)
            scores = scaled_scores(
                tl.dot(q, tl.trans(k), input_precision=PRECISION), scale_log2, cap_log2
            )
            is_visible = is_key[None, :] & (key[None, :] <= last_key[:, None])
            if window is not None:
                is_visible &= key[None, :] > last_key[:, None] - window
            scores = tl.where(is_visible, scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            # A query may see no key of a part at all: then the maximum stays -inf, and -inf - -inf
            # would be NaN.
            shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
            weights = tl.exp2(scores - shift[:, None])
            decay = tl.exp2(maximum - shift)
            total = total * decay + tl.sum(weights, 1)
            acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            maximum = new_maximum

        total = tl.where(total == 0.0, 1.0, total)
        result = acc / total[:, None]
        is_out = is_query[:, None] & is_dim[None, :]
        if is_first & is_last:
            out_row_ptr = out_ptr + (first_token + token) * out_token_stride
            out_row_ptr += query_head * out_head_stride
            tl.store(
                out_row_ptr[:, None] + dim[None, :],
                result.to(out_ptr.dtype.element_ty),
                mask=is_out,
            )
        else:
            entry = part_of(share, is_first) * tl.num_programs(0) + head
            part_row = entry.to(tl.int64) * BLOCK_ROWS + row
            tl.store(parts_ptr + part_row[:, None] * DIM + dim[None, :], result, mask=is_out)
            tl.store(lse_ptr + part_row, maximum + tl.log2(total), mask=is_query)
        begin = part_stop
        tile_begin = tile_stop
        tile += 1


@triton.jit(do_not_specialize=["num_shares"])
def _weigh_parts(
    parts_ptr,
    lse_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    out_token_stride,
    out_head_stride,
    num_shares,
    window,
    PARTS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Mean of the parts of one token and query head, weighted by their sums of exponentials.

    The logarithm `lse` of such a sum has base 2.
    """
    let_next_come(EARLY)
    tile = tl.program_id(0)
    token = tl.program_id(1)
    query_head = tl.program_id(2)
    num_tiles = tl.num_programs(0)
    _, share_blocks = divide(
        contexts_ptr, counts_ptr, num_tiles, num_shares, window, 1, BLOCK_KEYS, MIN_BLOCKS
    )
    first_share, last_share = shares_of(
        tile, share_blocks, contexts_ptr, counts_ptr, num_tiles, window, 1, BLOCK_KEYS
    )
    count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
    first_token = tl.load(tokens_ptr + tile).to(tl.int64)
    wait_for_ahead(EARLY)
    if (token < count) & (last_share > first_share):
        dim = tl.arange(0, BLOCK_DIM)
        is_dim = dim < DIM
        num_heads = tl.num_programs(2) // GROUP
        row = token * GROUP + query_head % GROUP
        maximum = tl.full([], -1e30, tl.float32)
        total = tl.zeros([], tl.float32)
        acc = tl.zeros([BLOCK_DIM], tl.float32)
        for some in range(first_share, last_share + 1, PARTS):
            share = some + tl.arange(0, PARTS)
            entry = part_of(share, share == first_share) * num_heads + query_head // GROUP
            part_row = entry.to(tl.int64) * BLOCK_ROWS + row
            lse = tl.load(lse_ptr + part_row, mask=share <= last_share, other=float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(lse, 0))
            weights = tl.exp2(lse - new_maximum)
            parts = tl.load(
                parts_ptr + part_row[:, None] * DIM + dim[None, :],
                mask=(lse > float("-inf"))[:, None] & is_dim[None, :],
                other=0.0,
            )
            decay = tl.exp2(maximum - new_maximum)
            total = total * decay + tl.sum(weights, 0)
            acc = acc * decay + tl.sum(parts * weights[:, None], 0)
            maximum = new_maximum

        out_row_ptr = out_ptr + (first_token + token) * out_token_stride
        out_row_ptr += query_head * out_head_stride
        result = acc / total
        tl.store(out_row_ptr + dim, result.to(out_ptr.dtype.element_ty), mask=is_dim)
