# mypy: disable-error-code="no-untyped-def"
"""Attention over pages whose sums are in one order, whoever asks and however many ask at once.

The keys of a context are cut at fixed places. A query weighs the keys of a piece by an online
softmax, block after block, and its pieces are joined in their order. A tile of a prompt goes
through its pieces in one program; of a decode each piece has its own program, and a second kernel
joins them by the same operations, which gives the same bits. What a tile's other queries see in
addition is weighed with zero.

Legend: T tokens of the step, B tiles, R rows of the block tables, N pages of a block table, Q query
heads, D head dim, P pages, L layers of the KV group, H KV heads, S tokens per page, X pieces, Y
query rows of a tile: its tokens times the query heads of a KV head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.decode_tiles import DecodeTiles, check_tiles
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.paged_inputs import check_paged_inputs
from raydix.kernels.attention.paged_prefill import check_tile_table
from raydix.kernels.attention.scores import LOG2_E, check_form, score_scales
from raydix.kernels.fixed_order.softmax_pieces import (
    attend_piece,
    join,
    mean,
    visible_from,
)

PIECE_TOKENS = 512
MAX_HEAD_DIM = 256
_TILE_ROWS = 64
_BLOCK_KEYS = 64
_JOINED_AT_ONCE = 4
_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)


def fixed_prefill(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles_X4: Tensor,
    *,
    tokens_per_tile: int,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend for the tokens of `cut_rows`' tiles, into their rows of `out_TQD`.

    Tensors and errors are those of `paged_prefill`; the pool has the dtype of the queries.
    """
    check_tile_table(tiles_X4)
    _check(q_TQD, pool_PLH2SD, layer, block_tables_RN, form, out_TQD)
    rows, tokens, counts, contexts = (tiles_X4[:, column] for column in range(4))
    if len(tiles_X4):
        _launch(
            (q_TQD, pool_PLH2SD, layer, block_tables_RN),
            (rows, tokens, contexts, counts),
            tokens_per_tile,
            form,
            out_TQD,
            None,
        )


def fixed_decode(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles: DecodeTiles,
    *,
    max_context_tokens: int,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend for tiles of a few tokens each, into their rows of `out_TQD`.

    Tensors and errors are those of `paged_decode`; the pool has the dtype of the queries.
    """
    check_tiles(tiles, 1)
    _check(q_TQD, pool_PLH2SD, layer, block_tables_RN, form, out_TQD)
    if len(tiles.rows_B):
        columns = (tiles.rows_B, tiles.tokens_B, tiles.context_tokens_B, tiles.num_tokens_B)
        _launch(
            (q_TQD, pool_PLH2SD, layer, block_tables_RN),
            columns,
            tiles.tokens_per_tile,
            form,
            out_TQD,
            max_context_tokens,
        )


def _check(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    check_paged_inputs(q_TQD, pool_PLH2SD, layer, block_tables_RN, out_TQD)
    check_form(form, q_TQD.shape[1], pool_PLH2SD.shape[2])
    head_dim = q_TQD.shape[2]
    if pool_PLH2SD.dtype != q_TQD.dtype or head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"The pool is {pool_PLH2SD.dtype}, queries {q_TQD.dtype}, heads {head_dim} wide; "
            f"expected one dtype, and at most {MAX_HEAD_DIM}."
        )


def _launch(
    paged: tuple[Tensor, Tensor, int, Tensor],
    columns: tuple[Tensor, Tensor, Tensor, Tensor | None],
    tokens_per_tile: int,
    form: AttentionForm,
    out_TQD: Tensor,
    max_context_tokens: int | None,
) -> None:
    """`max_context_tokens`: each piece has a program; None: a program goes through all pieces."""
    q_TQD, pool_PLH2SD, layer, block_tables_RN = paged
    rows_B, tokens_B, contexts_B, counts_B = columns
    _, _, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    num_query_heads = q_TQD.shape[1]
    group, num_tiles = num_query_heads // num_heads, len(rows_B)
    num_parts = triton.cdiv(tokens_per_tile * group, _TILE_ROWS)
    is_apart = max_context_tokens is not None and max_context_tokens > PIECE_TOKENS
    num_pieces = triton.cdiv(max_context_tokens, PIECE_TOKENS) if is_apart else 1
    num_entries = num_tiles * tokens_per_tile
    partial_XTQD = states_XTQ2 = None
    if is_apart:
        entries = (num_pieces, num_entries, num_query_heads)
        partial_XTQD = q_TQD.new_empty((*entries, head_dim), dtype=torch.float32)
        states_XTQ2 = q_TQD.new_empty((*entries, 2), dtype=torch.float32)

    scale_log2, cap_log2 = score_scales(form)
    block_dim = max(16, triton.next_power_of_2(head_dim))
    is_float32 = q_TQD.dtype == torch.float32
    _attend_tile[(num_heads, num_tiles * num_parts, num_pieces)](
        q_TQD,
        pool_PLH2SD,
        block_tables_RN,
        rows_B,
        tokens_B,
        contexts_B,
        counts_B,
        rows_B.stride(0),
        out_TQD,
        partial_XTQD,
        states_XTQ2,
        form.sinks_Q,
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        pool_PLH2SD.stride(0),
        layer * pool_PLH2SD.stride(1),
        block_tables_RN.stride(0),
        num_entries,
        scale_log2,
        cap_log2,
        form.window,
        TILE_TOKENS=tokens_per_tile,
        PARTS=num_parts,
        GROUP=group,
        PAGE=page_size,
        DIM=head_dim,
        BLOCK_DIM=block_dim,
        BLOCK_ROWS=_TILE_ROWS,
        BLOCK_KEYS=_BLOCK_KEYS if not is_float32 else 32,
        PIECE=PIECE_TOKENS,
        PRECISION="ieee" if is_float32 else None,
        num_warps=4,
        num_stages=1 if is_float32 or block_dim > 128 else 2,
        # Otherwise the compiler may contract the same sums in one kernel and not in the other.
        enable_fp_fusion=False,
    )
    if is_apart:
        _join_pieces[(num_entries, num_query_heads)](
            partial_XTQD,
            states_XTQ2,
            tokens_B,
            contexts_B,
            counts_B,
            out_TQD,
            form.sinks_Q,
            out_TQD.stride(0),
            out_TQD.stride(1),
            form.window,
            TILE_TOKENS=tokens_per_tile,
            DIM=head_dim,
            BLOCK_DIM=block_dim,
            PIECE=PIECE_TOKENS,
            num_warps=1,
            num_stages=_JOINED_AT_ONCE,
            enable_fp_fusion=False,
        )


@triton.jit(do_not_specialize=["layer_offset", "table_stride", "num_entries"])
def _attend_tile(
    q_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    column_stride,
    out_ptr,
    partial_ptr,
    states_ptr,
    sinks_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    page_stride,
    layer_offset,
    table_stride,
    num_entries,
    scale_log2,
    cap_log2,
    window,
    TILE_TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PIECE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The query rows of a part of a tile, and one KV head: all its pieces, or one."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    column = tile * column_stride
    stop = tl.load(contexts_ptr + column).to(tl.int32)
    count = 1 if counts_ptr is None else tl.load(counts_ptr + column).to(tl.int32)
    row = tl.program_id(1) % PARTS * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = row // GROUP
    first_token_of_part = tl.program_id(1) % PARTS * BLOCK_ROWS // GROUP
    if (stop == 0) | (first_token_of_part >= count):
        return

    positions = stop - count + token
    dim = tl.arange(0, BLOCK_DIM)
    query_head = head * GROUP + row % GROUP
    is_row = (token < count) & (token < TILE_TOKENS)
    is_query = is_row[:, None] & (dim < DIM)[None, :]
    first_token = tl.load(tokens_ptr + column).to(tl.int64)
    q_row_ptr = q_ptr + (first_token + token) * q_token_stride + query_head * q_head_stride
    q = tl.load(q_row_ptr[:, None] + dim[None, :], mask=is_query, other=0.0)
    table_ptr = tables_ptr + tl.load(rows_ptr + column).to(tl.int64) * table_stride
    head_ptr = pool_ptr + layer_offset + head * (2 * PAGE * DIM)
    # This part's queries see no key past their last one.
    last = tl.minimum((tl.program_id(1) % PARTS * BLOCK_ROWS + BLOCK_ROWS - 1) // GROUP, count - 1)
    part_stop = stop - count + last + 1
    first_key = visible_from(stop - count + first_token_of_part + 1, 1, window)
    first_piece = first_key // PIECE
    stop_piece = tl.cdiv(part_stop, PIECE)

    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    if partial_ptr is not None:
        first_piece = tl.maximum(first_piece, tl.program_id(2))
        stop_piece = tl.minimum(stop_piece, tl.program_id(2) + 1)
    for piece in range(first_piece, stop_piece):
        begin = tl.maximum(piece * PIECE, first_key // BLOCK_KEYS * BLOCK_KEYS)
        end = tl.minimum(piece * PIECE + PIECE, part_stop)
        found = attend_piece(
            q,
            head_ptr,
            table_ptr,
            positions,
            begin,
            end,
            first_key,
            part_stop,
            page_stride,
            scale_log2,
            cap_log2,
            window,
            PAGE,
            DIM,
            BLOCK_DIM,
            BLOCK_ROWS,
            BLOCK_KEYS,
            PRECISION,
        )
        maximum, total, acc = join((maximum, total, acc), found)

    if partial_ptr is None:
        sink_log2 = None
        if sinks_ptr is not None:
            sink_log2 = tl.load(sinks_ptr + query_head).to(tl.float32) * _LOG2_E
        result = mean((maximum, total, acc), sink_log2)
        out_row_ptr = out_ptr + (first_token + token) * out_token_stride
        out_row_ptr += query_head * out_head_stride
        tl.store(
            out_row_ptr[:, None] + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=is_query
        )
    else:
        entry = tl.program_id(2).to(tl.int64) * num_entries + tile * TILE_TOKENS + token
        entry = entry * (tl.num_programs(0) * GROUP) + query_head
        tl.store(partial_ptr + entry[:, None] * DIM + dim[None, :], acc, mask=is_query)
        tl.store(states_ptr + entry * 2, maximum, mask=is_row)
        tl.store(states_ptr + entry * 2 + 1, total, mask=is_row)


@triton.jit
def _join_pieces(
    partial_ptr,
    states_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    sinks_ptr,
    out_token_stride,
    out_head_stride,
    window,
    TILE_TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PIECE: tl.constexpr,
):
    """One token and query head: its pieces, in their order."""
    tile_token = tl.program_id(0)
    query_head = tl.program_id(1)
    tile = tile_token // TILE_TOKENS
    token = tile_token % TILE_TOKENS
    count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
    context = tl.load(contexts_ptr + tile).to(tl.int32)
    if (token >= count) | (context == 0):
        return
    dim = tl.arange(0, BLOCK_DIM)
    stop = context - count + token + 1
    maximum = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([1, BLOCK_DIM], tl.float32)
    first_piece = visible_from(stop, 1, window) // PIECE
    for piece in range(first_piece, tl.cdiv(stop, PIECE)):
        place = tl.zeros([1], tl.int64) + piece
        one = (place * tl.num_programs(0) + tile_token) * tl.num_programs(1) + query_head
        found_acc = tl.load(
            partial_ptr + one[:, None] * DIM + dim[None, :], mask=(dim < DIM)[None, :], other=0.0
        )
        found = (tl.load(states_ptr + one * 2), tl.load(states_ptr + one * 2 + 1), found_acc)
        maximum, total, acc = join((maximum, total, acc), found)
    sink_log2 = None
    if sinks_ptr is not None:
        sink_log2 = (
            tl.zeros([1], tl.float32) + tl.load(sinks_ptr + query_head).to(tl.float32) * _LOG2_E
        )
    result = mean((maximum, total, acc), sink_log2)
    first_token = tl.load(tokens_ptr + tile).to(tl.int64)
    out_row_ptr = out_ptr + (first_token + token) * out_token_stride + query_head * out_head_stride
    tl.store(
        out_row_ptr + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=(dim < DIM)[None, :]
    )
