# mypy: disable-error-code="no-untyped-def"
"""Attention of many query tokens per row by as many programs as run at a time, in equal shares.

Legend: T tokens of the step, or of a tile; X tiles, R rows of the block tables, N pages of a block
table, Q query heads, D head dim, P pages, L layers of the KV group, H KV heads, S slots per page, Y
parts of tiles.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention_form import AttentionForm
from raydix.kernels.attention_scores import score_scales
from raydix.kernels.early_launch import early_launch, wait_for_inputs
from raydix.kernels.equal_shares import divide, num_sms, part_of, shares_of
from raydix.kernels.prefill_hopper import (
    BLOCK_KEYS,
    NUM_WARPS,
    TILE_TOKENS,
    attend_share,
    key_boxes,
)

_MIN_BLOCKS = 2
"""Blocks of keys that are worth a part."""
_ROWS_TOGETHER = 32
"""Of a tile, whose parts a program weighs."""


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
    """As `paged_prefill`, for what `prefill_hopper.fits`; it has checked all else."""
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    num_tiles, num_query_heads = tiles_X4.shape[0], q_TQD.shape[1]
    num_shares = max(num_sms(q_TQD.device) // num_query_heads, 1)
    parts_size = (2 * num_shares, num_query_heads, TILE_TOKENS)
    parts_YQTD = q_TQD.new_empty((*parts_size, head_dim), dtype=torch.float32)
    lse_YQT = q_TQD.new_empty(parts_size, dtype=torch.float32)
    attend_share[(num_query_heads, num_shares)](
        q_TQD,
        key_boxes(pool_PLH2SD),
        block_tables_RN,
        tiles_X4,
        out_TQD,
        parts_YQTD,
        lse_YQT,
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
    _weigh_parts[(num_tiles, num_query_heads, TILE_TOKENS // _ROWS_TOGETHER)](
        parts_YQTD,
        lse_YQT,
        tiles_X4,
        out_TQD,
        out_TQD.stride(0),
        out_TQD.stride(1),
        num_shares,
        MIN_BLOCKS=_MIN_BLOCKS,
        BLOCK_KEYS=BLOCK_KEYS,
        TILE=TILE_TOKENS,
        ROWS=_ROWS_TOGETHER,
        DIM=head_dim,
        num_warps=4,
        **early_launch(q_TQD.device),
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
    num_tiles = tl.num_programs(0)
    counts_ptr = tiles_ptr + 2
    contexts_ptr = tiles_ptr + 3
    _, share_blocks = divide(
        contexts_ptr, counts_ptr, num_tiles, num_shares, None, 4, BLOCK_KEYS, MIN_BLOCKS
    )
    first_share, last_share = shares_of(
        tile, share_blocks, contexts_ptr, counts_ptr, num_tiles, None, 4, BLOCK_KEYS
    )
    if last_share > first_share:
        row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
        dim = tl.arange(0, DIM)
        is_row = row < tl.load(counts_ptr + 4 * tile)
        maximum = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        for share in range(first_share, last_share + 1):
            entry = part_of(share, share == first_share) * tl.num_programs(1) + query_head
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
