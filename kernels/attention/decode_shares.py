# mypy: disable-error-code="no-untyped-def"
"""Attention of a few query tokens per row by as many programs as run at a time, in equal shares.

As `prefill_shares`, which explains them: here a share belongs to a KV head, and of a tile with few
queries many parts may meet.

Legend: T tokens of the step, B tiles (a few query tokens of one row), R rows of the block tables, N
pages of a block table, Q query heads, D head dim, P pages, L layers of the KV group, H KV heads, S
tokens per page, Y parts of tiles, X query rows of a tile: tokens times query heads of a KV head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.decode_hopper import BLOCK_KEYS, MAX_TILE_ROWS, attend_decode_share
from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.hopper_blocks import NUM_WARPS, key_boxes
from raydix.kernels.attention.scores import score_scales
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead
from raydix.kernels.device.gpu import num_sms

MAX_SHARED_ROWS = MAX_TILE_ROWS
"""The most query rows of a tile: its tokens times the query heads of a KV head."""
_PROGRAMS_PER_SM = 2
_MIN_BLOCKS = 2
"""The least number of blocks of keys for which a separate part pays."""
_PARTS_TOGETHER = 16
"""The number of parts of a query row that one program combines at a time."""
_TILES: tl.constexpr = tl.constexpr(128)
"""The number of tiles that a program looks at together."""


def decode_by_shares(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles: DecodeTiles,
    *,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend as `paged_decode` does, for what `hopper_blocks.fits`; the caller checks all else."""
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    group = q_TQD.shape[1] // num_heads
    tile_rows = tiles.tokens_per_tile * group
    num_shares = max(_PROGRAMS_PER_SM * num_sms(q_TQD.device) // num_heads, 1)
    parts_size = (2 * num_shares, num_heads, tile_rows)
    parts_YHXD = q_TQD.new_empty((*parts_size, head_dim), dtype=torch.float32)
    lse_YHX = q_TQD.new_empty(parts_size, dtype=torch.float32)
    attend_decode_share[(num_heads, num_shares)](
        q_TQD,
        key_boxes(pool_PLH2SD, BLOCK_KEYS),
        block_tables_RN,
        tiles.rows_B,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD,
        parts_YHXD,
        lse_YHX,
        form.scales_of(pool_PLH2SD),
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        layer,
        num_layers,
        len(q_TQD),
        len(tiles.rows_B),
        block_tables_RN.stride(0),
        score_scales(form).scale_log2,
        GROUP=group,
        TILE_ROWS=tile_rows,
        PAGE=page_size,
        MIN_BLOCKS=_MIN_BLOCKS,
        num_warps=NUM_WARPS,
        **early_launch(q_TQD.device),
    )
    weigh_decode_parts(parts_YHXD, lse_YHX, tiles, out_TQD)


def weigh_decode_parts(
    parts_YHXD: Tensor, lse_YHX: Tensor, tiles: DecodeTiles, out_TQD: Tensor
) -> None:
    """Weigh the parts of divided tiles, into their rows of `out_TQD`.

    parts_YHXD and lse_YHX: contiguous float32, two for each share, its later part of one tile and
    its first of another; lse is the logarithm to base 2 of each part's sum of exponentials.
    """
    num_parts, num_heads, tile_rows, head_dim = parts_YHXD.shape
    _weigh_decode_parts[(len(tiles.rows_B), num_heads, tile_rows)](
        parts_YHXD,
        lse_YHX,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD,
        out_TQD.stride(0),
        out_TQD.stride(1),
        num_parts // 2,
        MIN_BLOCKS=_MIN_BLOCKS,
        BLOCK_KEYS=BLOCK_KEYS,
        GROUP=tile_rows // tiles.tokens_per_tile,
        DIM=head_dim,
        PARTS=_PARTS_TOGETHER,
        num_warps=4,
        **early_launch(out_TQD.device),
    )


@triton.jit(do_not_specialize=["num_shares"])
def _weigh_decode_parts(
    parts_ptr,
    lse_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    out_token_stride,
    out_head_stride,
    num_shares,
    MIN_BLOCKS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Mean of the parts of a tile's query row, weighted by their sums of exponentials.

    The logarithm `lse` of such a sum has base 2.
    """
    let_next_come(EARLY)
    tile = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
    context = tl.load(contexts_ptr + tile).to(tl.int32)
    first_token = tl.load(tokens_ptr + tile).to(tl.int64)
    first_share = 0
    last_share = 0
    if (row < count * GROUP) & (context > 0):
        all_blocks = 0
        begin = 0
        for some in range(0, tl.num_programs(0), _TILES):
            index = some + tl.arange(0, _TILES)
            is_tile = index < tl.num_programs(0)
            contexts = tl.load(contexts_ptr + index, mask=is_tile, other=0).to(tl.int32)
            blocks = tl.cdiv(contexts, BLOCK_KEYS)
            if counts_ptr is not None:
                counts = tl.load(counts_ptr + index, mask=is_tile, other=0)
                blocks = tl.where(counts > 0, blocks, 0)
            all_blocks += tl.sum(blocks, 0)
            begin += tl.sum(tl.where(index < tile, blocks, 0), 0)
        share_blocks = tl.maximum(tl.cdiv(all_blocks, num_shares), MIN_BLOCKS)
        first_share = begin // share_blocks
        last_share = (begin + tl.cdiv(context, BLOCK_KEYS) - 1) // share_blocks

    wait_for_ahead(EARLY)
    if last_share > first_share:
        dim = tl.arange(0, DIM)
        maximum = -1e30
        total = 0.0
        acc = tl.zeros([DIM], tl.float32)
        for some in range(first_share, last_share + 1, PARTS):
            share = some + tl.arange(0, PARTS)
            is_share = share <= last_share
            # A share may have the first part of one tile, and a later part of one other.
            part = 2 * share + (share == first_share).to(tl.int32)
            part_row = (part * tl.num_programs(1) + head) * tl.num_programs(2) + row
            lse = tl.load(lse_ptr + part_row, mask=is_share, other=float("-inf"))
            found = tl.load(
                parts_ptr + part_row[:, None] * DIM + dim[None, :],
                mask=is_share[:, None],
                other=0.0,
            )
            new_maximum = tl.maximum(maximum, tl.max(lse, 0))
            weights = tl.exp2(lse - new_maximum)
            decay = tl.exp2(maximum - new_maximum)
            total = total * decay + tl.sum(weights, 0)
            acc = acc * decay + tl.sum(found * weights[:, None], 0)
            maximum = new_maximum

        out_row_ptr = out_ptr + (first_token + row // GROUP) * out_token_stride
        out_row_ptr += (head * GROUP + row % GROUP) * out_head_stride
        tl.store(out_row_ptr + dim, (acc / total).to(out_ptr.dtype.element_ty))
