# mypy: disable-error-code="no-untyped-def"
"""Causal attention of many query tokens per row over pages (FlashAttention-2 order).

On Hopper plain attention in bf16 takes `prefill_shares`. Elsewhere each program takes a tile of one
row's queries and one query head, and walks the row's pages from the first that its window shows, if
it has one, up to the tile's last token. Keys and values of the step itself are read from their
pages too, so they must have been written before.

Legend: T tokens of the step, X tiles, R rows of the block tables, N pages of a block table, Q query
heads, D head dim, P pages, L layers of the KV group, H KV heads, S tokens per page.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.hopper_blocks import fits
from raydix.kernels.attention.paged_inputs import check_paged_inputs
from raydix.kernels.attention.prefill_shares import prefill_by_shares
from raydix.kernels.attention.rows import PrefillRow
from raydix.kernels.attention.scores import (
    check_form,
    first_maximum_and_total,
    kv_scales,
    scaled_scores,
    score_scales,
)
from raydix.kernels.kv_cache.fp8 import FP8

TILE_TOKENS = 128
_FLOAT32_TILE_TOKENS = 32
_BOX_DIM = 128
_FP8_NARROW_DIM = 64
"""The widest heads of which 64 keys fit into registers, where FP8 becomes what is multiplied."""
_MAX_WHOLE_DIM = 256
"""The widest heads of which one program holds a whole tile: of wider ones two have a half each."""
_MAX_BOX_ROWS = 2**31 - 1
"""The most rows that a tensor map can address, as its coordinates are int32."""


def tile_tokens(dtype: torch.dtype) -> int:
    """Query tokens per tile for queries of `dtype`."""
    return _FLOAT32_TILE_TOKENS if dtype == torch.float32 else TILE_TOKENS


def tile_parts(head_dim: int) -> int:
    """How many programs share the queries of a tile."""
    return 2 if head_dim > _MAX_WHOLE_DIM else 1


def check_tile_table(tiles_X4: Tensor) -> None:
    """Raise ValueError if this is no table of `cut_rows` on a device."""
    if tiles_X4.dtype != torch.int32 or tiles_X4.shape[1:] != (4,) or not tiles_X4.is_contiguous():
        raise ValueError(
            f"The tiles are {tiles_X4.dtype} {tuple(tiles_X4.shape)}; expected contiguous int32 "
            f"[X, 4]."
        )


def is_extension(row: PrefillRow, num_query_heads: int, num_sms: int) -> bool:
    """Are tokens so few, and the prefix so long, that splitting keys (`paged_decode`) is faster?"""
    num_programs = -(-row.num_tokens // TILE_TOKENS) * num_query_heads
    return 2 * num_programs <= num_sms and row.context_tokens >= 4 * row.num_tokens


def paged_prefill(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles_X4: Tensor,
    *,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend for the tiles' tokens, into their rows of `out_TQD`; all others are left alone.

    q, pool and out: bf16 or float32 (IEEE arithmetic), contiguous in D; the pool may be of FP8.
    block_tables_RN: int32; pages wholly behind the window are not read. tiles_X4: `cut_rows` by
    `tile_tokens`, on the device. The softmax is in float32. Raises ValueError if a shape, dtype or
    stride differs.
    """
    check_paged_inputs(q_TQD, pool_PLH2SD, layer, block_tables_RN, out_TQD)
    check_form(form, q_TQD.shape[1], pool_PLH2SD.shape[2])
    check_tile_table(tiles_X4)
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    num_tiles, num_query_heads = tiles_X4.shape[0], q_TQD.shape[1]
    if num_tiles == 0:
        return
    if fits(q_TQD, pool_PLH2SD, form):
        prefill_by_shares(
            q_TQD, pool_PLH2SD, layer, block_tables_RN, tiles_X4, form=form, out_TQD=out_TQD
        )
        return
    is_float32 = q_TQD.dtype == torch.float32
    block_dim = max(16, triton.next_power_of_2(head_dim))
    is_wide = block_dim > _BOX_DIM
    num_parts = tile_parts(head_dim)
    is_fp8 = pool_PLH2SD.dtype == FP8
    block_keys = (32 if is_float32 or (is_fp8 and head_dim > _FP8_NARROW_DIM) else 64) // num_parts
    scale_log2, cap_log2 = score_scales(form)
    key_blocks = _key_blocks(pool_PLH2SD, block_keys)
    _prefill_tile[(num_query_heads, num_tiles * num_parts)](
        q_TQD,
        pool_PLH2SD,
        key_blocks,
        block_tables_RN,
        tiles_X4,
        out_TQD,
        form.sinks_Q,
        form.scales_of(pool_PLH2SD),
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        layer,
        num_layers,
        block_tables_RN.stride(0),
        scale_log2,
        cap_log2,
        form.window,
        KV_HEADS=num_heads,
        GROUP=num_query_heads // num_heads,
        PAGE=page_size,
        DIM=head_dim,
        BLOCK_DIM=block_dim,
        PARTS=num_parts,
        BLOCK_ROWS=tile_tokens(q_TQD.dtype) // num_parts,
        BLOCK_KEYS=block_keys,
        PRECISION="ieee" if is_float32 else None,
        STAGES=2 if is_float32 or is_wide or key_blocks is not None else 3,
        num_warps=4 if is_float32 else 8,
        # Two programs per multiprocessor: one multiplies during the other's softmax. 0.82 of SDPA;
        # 0.60 without. Wide heads need the registers of both.
        maxnreg=None if is_float32 or is_wide else 128,
    )


def _key_blocks(pool_PLH2SD: Tensor, block_keys: int) -> TensorDescriptor | None:
    """A tensor map of the pool's rows of D, in which a block of keys is one box.

    None where keys are loaded one by one. At 8,192 tokens after as many it saves 2 % of the time
    (H200, 2026-11-21).
    """
    page_size, head_dim = pool_PLH2SD.shape[4:]
    num_rows = pool_PLH2SD.numel() // head_dim
    is_box = page_size >= block_keys and head_dim == _BOX_DIM and num_rows <= _MAX_BOX_ROWS
    if pool_PLH2SD.dtype != torch.bfloat16 or not is_box:
        return None
    return TensorDescriptor(
        pool_PLH2SD, [num_rows, head_dim], [head_dim, 1], [block_keys, head_dim]
    )


@triton.jit
def _load_kv(
    pool_ptr,
    table_ptr,
    begin,
    first_key,
    stop,
    head_row,
    page_rows,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Keys and values [BLOCK_KEYS, BLOCK_DIM] from `begin` on.

    If IS_MASKED, those before `first_key` and past `stop` are zero. Rows are those of the pool seen
    as [P * L * H * 2 * S, D]. There, pages are strange or hold what their last owner left: a weight
    of zero would not silence NaN.
    """
    key = begin + tl.arange(0, BLOCK_KEYS)
    dim = tl.arange(0, BLOCK_DIM)
    is_key = key < stop
    if first_key is not None:
        is_key &= key >= first_key
    if PAGE >= BLOCK_KEYS:
        page = tl.load(table_ptr + begin // PAGE).to(tl.int64)
        rows = page * page_rows + head_row + begin % PAGE + tl.arange(0, BLOCK_KEYS)
    elif IS_MASKED:
        pages = tl.load(table_ptr + key // PAGE, mask=is_key, other=0).to(tl.int64)
        rows = pages * page_rows + head_row + key % PAGE
    else:
        rows = tl.load(table_ptr + key // PAGE).to(tl.int64) * page_rows + head_row + key % PAGE

    kv_ptr = pool_ptr + rows[:, None] * DIM + dim[None, :]
    if IS_MASKED:
        is_kv = is_key[:, None] & (dim < DIM)[None, :]
        k = tl.load(kv_ptr, mask=is_kv, other=0.0)
        v = tl.load(kv_ptr + PAGE * DIM, mask=is_kv, other=0.0)
    elif DIM == BLOCK_DIM:
        k = tl.load(kv_ptr)
        v = tl.load(kv_ptr + PAGE * DIM)
    else:
        k = tl.load(kv_ptr, mask=(dim < DIM)[None, :], other=0.0)
        v = tl.load(kv_ptr + PAGE * DIM, mask=(dim < DIM)[None, :], other=0.0)
    return k, v


@triton.jit
def _visible(begin, positions, window, BLOCK_KEYS: tl.constexpr):
    """Whether the queries at `positions` see each key of the block that starts at `begin`."""
    key = begin + tl.arange(0, BLOCK_KEYS)[None, :]
    is_visible = key <= positions[:, None]
    if window is not None:
        is_visible &= key > positions[:, None] - window
    return is_visible


@triton.jit
def _attend(q, k, v, is_visible, state, scale_log2, cap_log2, PRECISION: tl.constexpr):
    """One step of the online softmax; `state` is (maximum, total, acc), maxima in units of log2.

    is_visible: None where every query sees all keys.
    """
    maximum, total, acc = state
    # Of FP8 every number is one of the queries' dtype, too.
    k, v = k.to(q.dtype), v.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if cap_log2 is not None:
        scores = scaled_scores(scores, scale_log2, cap_log2)
        scale_log2 = 1.0
    if is_visible is not None:
        scores = tl.where(is_visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale_log2)
    weights = tl.exp2(scores * scale_log2 - new_maximum[:, None])
    decay = tl.exp2(maximum - new_maximum)
    total = total * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return new_maximum, total, acc


@triton.jit(do_not_specialize=["layer", "num_layers", "table_stride"])
def _prefill_tile(
    q_ptr,
    pool_ptr,
    key_blocks,
    tables_ptr,
    tiles_ptr,
    out_ptr,
    sinks_ptr,
    scales_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    layer,
    num_layers,
    table_stride,
    scale_log2,
    cap_log2,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A part of a tile of queries, and one query head; neighbours share keys through L2."""
    query_head = tl.program_id(0)
    tile_ptr = tiles_ptr + tl.program_id(1) // PARTS * 4
    table_ptr = tables_ptr + tl.load(tile_ptr).to(tl.int64) * table_stride
    first_token = tl.load(tile_ptr + 1).to(tl.int64)
    count = tl.load(tile_ptr + 2)
    stop = tl.load(tile_ptr + 3)
    first_position = stop - count
    if PARTS > 1:
        skipped = tl.program_id(1) % PARTS * BLOCK_ROWS
        if skipped >= count:
            return
        first_token += skipped
        first_position += skipped
        count = tl.minimum(count - skipped, BLOCK_ROWS)
        stop = first_position + count

    row = tl.arange(0, BLOCK_ROWS)
    dim = tl.arange(0, BLOCK_DIM)
    is_query = (row < count)[:, None] & (dim < DIM)[None, :]
    q_row_ptr = q_ptr + (first_token + row) * q_token_stride + query_head * q_head_stride
    q = tl.load(q_row_ptr[:, None] + dim[None, :], mask=is_query, other=0.0)
    page_rows = num_layers * (KV_HEADS * 2 * PAGE)
    head_row = (layer * KV_HEADS + query_head // GROUP) * (2 * PAGE)
    k_scale, v_scale = kv_scales(scales_ptr, query_head // GROUP, KV_HEADS)
    scale_log2 *= k_scale

    # A query may see no key of its first blocks; a maximum of -inf would make NaN of that.
    maximum, total = first_maximum_and_total(
        sinks_ptr, query_head, -1e30 if window is not None else float("-inf"), BLOCK_ROWS
    )
    acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    # Blocks that every query of the tile sees whole need no mask.
    whole = (first_position + 1) // BLOCK_KEYS * BLOCK_KEYS
    first_key = None
    first_whole = 0
    if window is not None:
        first_key = tl.maximum(first_position + 1 - window, 0)
        first_whole = tl.cdiv(tl.maximum(stop - window, 0), BLOCK_KEYS) * BLOCK_KEYS
        first_whole = tl.minimum(first_whole, whole)
        first_block = first_key // BLOCK_KEYS * BLOCK_KEYS
        for begin in tl.range(first_block, first_whole, BLOCK_KEYS, num_stages=1):
            k, v = _load_kv(
                pool_ptr,
                table_ptr,
                begin,
                first_key,
                stop,
                head_row,
                page_rows,
                PAGE,
                DIM,
                BLOCK_DIM,
                BLOCK_KEYS,
                True,
            )
            is_visible = _visible(begin, first_position + row, window, BLOCK_KEYS)
            maximum, total, acc = _attend(
                q, k, v, is_visible, (maximum, total, acc), scale_log2, cap_log2, PRECISION
            )
    for begin in tl.range(first_whole, whole, BLOCK_KEYS, num_stages=STAGES):
        if key_blocks is not None:
            block_row = tl.load(table_ptr + begin // PAGE) * page_rows + head_row + begin % PAGE
            k = key_blocks.load([block_row, 0])
            v = key_blocks.load([block_row + PAGE, 0])
        else:
            k, v = _load_kv(
                pool_ptr,
                table_ptr,
                begin,
                None,
                stop,
                head_row,
                page_rows,
                PAGE,
                DIM,
                BLOCK_DIM,
                BLOCK_KEYS,
                False,
            )
        maximum, total, acc = _attend(
            q, k, v, None, (maximum, total, acc), scale_log2, cap_log2, PRECISION
        )
    for begin in tl.range(whole, stop, BLOCK_KEYS, num_stages=1):
        k, v = _load_kv(
            pool_ptr,
            table_ptr,
            begin,
            first_key,
            stop,
            head_row,
            page_rows,
            PAGE,
            DIM,
            BLOCK_DIM,
            BLOCK_KEYS,
            True,
        )
        is_visible = _visible(begin, first_position + row, window, BLOCK_KEYS)
        maximum, total, acc = _attend(
            q, k, v, is_visible, (maximum, total, acc), scale_log2, cap_log2, PRECISION
        )

    result = acc * v_scale / total[:, None]
    out_row_ptr = out_ptr + (first_token + row) * out_token_stride + query_head * out_head_stride
    tl.store(
        out_row_ptr[:, None] + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=is_query
    )
