# mypy: disable-error-code="no-untyped-def"
"""Attention of many query tokens per row by as many programs as run at a time, in equal shares.

The blocks of keys that tiles see, tile after tile, are divided equally among the programs of a
query head: whatever the tiles, all of them end together. Of a tile that it has alone a program
knows the answer; where programs meet in a tile each leaves a part, and a second kernel weighs the
parts (Flash-Decoding). Both kernels divide for themselves: lengths are known on the device alone.

Legend: T tokens of the step, or of a tile; X tiles, R rows of the block tables, N pages of a block
table, Q query heads, D head dim, P pages, L layers of the KV group, H KV heads, S tokens per page,
Y parts of tiles.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.hopper_blocks import NUM_WARPS, key_boxes
from raydix.kernels.attention.prefill_hopper import BLOCK_KEYS, TILE_TOKENS, attend_share
from raydix.kernels.attention.scores import score_scales
from raydix.kernels.device.early_launch import early_launch, wait_for_inputs
from raydix.kernels.device.gpu import num_sms

_MIN_BLOCKS = 2
"""The least number of blocks of keys for which a separate part pays."""
_ROWS_TOGETHER = 32
"""The number of rows of a tile whose parts one program combines."""
_TILES: tl.constexpr = tl.constexpr(128)
"""The number of tiles that a program looks at together."""


def prefill_by_shares(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles_X4: Tensor,
    *,
    form: AttentionForm,
    out_TQD: Tensor,
) -> None:
    """Attend as `paged_prefill` does, for what `hopper_blocks.fits`; the caller checks all else."""
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    num_tiles, num_query_heads = tiles_X4.shape[0], q_TQD.shape[1]
    num_shares = max(num_sms(q_TQD.device) // num_query_heads, 1)
    parts_size = (2 * num_shares, num_query_heads, TILE_TOKENS)
    parts_YQTD = q_TQD.new_empty((*parts_size, head_dim), dtype=torch.float32)
    lse_YQT = q_TQD.new_empty(parts_size, dtype=torch.float32)
    attend_share[(num_query_heads, num_shares)](
        q_TQD,
        key_boxes(pool_PLH2SD, BLOCK_KEYS),
        block_tables_RN,
        tiles_X4,
        out_TQD,
        parts_YQTD,
        lse_YQT,
        form.scales_of(pool_PLH2SD),
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQD.stride(0),
        out_TQD.stride(1),
        layer,
        num_layers,
        num_tiles,
        block_tables_RN.stride(0),
        score_scales(form).scale_log2,
        KV_HEADS=num_heads,
        GROUP=num_query_heads // num_heads,
        PAGE=page_size,
        MIN_BLOCKS=_MIN_BLOCKS,
        num_warps=NUM_WARPS,
    )
    weigh_parts(parts_YQTD, lse_YQT, tiles_X4, out_TQD)


def weigh_parts(parts_YQTD: Tensor, lse_YQT: Tensor, tiles_X4: Tensor, out_TQD: Tensor) -> None:
    """Weigh the parts of divided tiles, into their rows of `out_TQD`.

    parts_YQTD and lse_YQT: contiguous float32, two for each share, its later part of one tile and
    its first of another; lse is the logarithm to base 2 of each part's sum of exponentials.
    """
    num_parts, num_query_heads, tile_tokens, head_dim = parts_YQTD.shape
    _weigh_parts[(len(tiles_X4), num_query_heads, tile_tokens // _ROWS_TOGETHER)](
        parts_YQTD,
        lse_YQT,
        tiles_X4,
        out_TQD,
        out_TQD.stride(0),
        out_TQD.stride(1),
        num_parts // 2,
        MIN_BLOCKS=_MIN_BLOCKS,
        BLOCK_KEYS=BLOCK_KEYS,
        TILE=tile_tokens,
        ROWS=_ROWS_TOGETHER,
        DIM=head_dim,
        num_warps=4,
        **early_launch(out_TQD.device),
    )


@triton.jit(do_not_specialize=["num_shares"])
def _weigh_parts(
    parts_ptr,
    lse_ptr,
    tiles_ptr,
    out_ptr,
    out_token_stride,
    out_head_stride,
    num_shares,
    MIN_BLOCKS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Mean of the parts of some of a tile's queries, weighted by their sums of exponentials.

    The logarithm `lse` of such a sum has base 2.
    """
    wait_for_inputs(EARLY)
    tile = tl.program_id(0)
    query_head = tl.program_id(1)
    all_blocks = 0
    begin = 0
    own_blocks = 0
    for some in range(0, tl.num_programs(0), _TILES):
        index = some + tl.arange(0, _TILES)
        is_tile = index < tl.num_programs(0)
        count = tl.load(tiles_ptr + 4 * index + 2, mask=is_tile, other=0)
        context = tl.load(tiles_ptr + 4 * index + 3, mask=is_tile, other=0)
        blocks = tl.where(count > 0, tl.cdiv(context, BLOCK_KEYS), 0)
        all_blocks += tl.sum(blocks, 0)
        begin += tl.sum(tl.where(index < tile, blocks, 0), 0)
        own_blocks += tl.sum(tl.where(index == tile, blocks, 0), 0)
    share_blocks = tl.maximum(tl.cdiv(all_blocks, num_shares), MIN_BLOCKS)
    first_share = begin // share_blocks
    # Of a tile without blocks that is the share before.
    last_share = (begin + own_blocks + share_blocks - 1) // share_blocks - 1
    if last_share > first_share:
        row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
        dim = tl.arange(0, DIM)
        is_row = row < tl.load(tiles_ptr + 4 * tile + 2)
        maximum = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        for share in range(first_share, last_share + 1):
            # A share may have the first part of one tile, and a later part of one other.
            part = 2 * share + (share == first_share).to(tl.int32)
            entry = part * tl.num_programs(1) + query_head
            part_row = entry.to(tl.int64) * TILE + row
            lse = tl.load(lse_ptr + part_row, mask=is_row, other=float("-inf"))
            found = tl.load(
                parts_ptr + part_row[:, None] * DIM + dim[None, :], mask=is_row[:, None], other=0.0
            )
            new_maximum = tl.maximum(maximum, lse)
            weight = tl.exp2(lse - new_maximum)
            decay = tl.exp2(maximum - new_maximum)
            total = total * decay + weight
            acc = acc * decay[:, None] + found * weight[:, None]
            maximum = new_maximum

        result = acc / tl.where(is_row, total, 1.0)[:, None]
        out_row_ptr = (
            out_ptr + (tl.load(tiles_ptr + 4 * tile + 1).to(tl.int64) + row) * out_token_stride
        )
        out_row_ptr += query_head * out_head_stride
        tl.store(
            out_row_ptr[:, None] + dim[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=is_row[:, None],
        )
