# mypy: disable-error-code="no-untyped-def"
"""The second kernel of split-KV attention: weigh the splits (Flash-Decoding).

Legend: T tokens of the tiles, or of the step; Q query heads, D head dim, X splits.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead


def combine_splits(
    partial_XTQD: Tensor, lse_XTQ: Tensor, tiles: DecodeTiles, out_TQD: Tensor
) -> None:
    """Weigh what each split found, into the rows of `out_TQD` that the tiles name.

    partial_XTQD and lse_XTQ: contiguous float32, T = tiles x tokens_per_tile; lse is the logarithm
    to base 2 of each split's sum of exponentials.
    """
    num_splits, num_tile_tokens, num_query_heads, head_dim = partial_XTQD.shape
    _combine_splits[(num_tile_tokens, num_query_heads)](
        partial_XTQD,
        lse_XTQ,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQD,
        out_TQD.stride(0),
        out_TQD.stride(1),
        num_splits,
        TILE_TOKENS=tiles.tokens_per_tile,
        BLOCK_SPLITS=triton.next_power_of_2(num_splits),
        DIM=head_dim,
        BLOCK_DIM=max(16, triton.next_power_of_2(head_dim)),
        num_warps=4,
        **early_launch(out_TQD.device),
    )


@triton.jit(do_not_specialize=["num_splits"])
def _combine_splits(
    partial_ptr,
    lse_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
    out_ptr,
    out_token_stride,
    out_head_stride,
    num_splits,
    TILE_TOKENS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Mean of one token's and head's splits, weighted by their sums of exponentials.

    The logarithm `lse` of such a sum has base 2.
    """
    let_next_come(EARLY)
    tile_token = tl.program_id(0)
    query_head = tl.program_id(1)
    tile = tile_token // TILE_TOKENS
    token = tile_token % TILE_TOKENS
    count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
    context = tl.load(contexts_ptr + tile)
    first_token = tl.load(tokens_ptr + tile).to(tl.int64)
    wait_for_ahead(EARLY)
    if (token < count) & (context > 0):
        split = tl.arange(0, BLOCK_SPLITS)
        is_split = split < num_splits
        dim = tl.arange(0, BLOCK_DIM)
        is_dim = dim < DIM
        entry = (split * tl.num_programs(0) + tile_token).to(tl.int64) * tl.num_programs(
            1
        ) + query_head
        lse = tl.load(lse_ptr + entry, mask=is_split, other=float("-inf"))
        weights = tl.exp2(lse - tl.max(lse, 0))
        partial = tl.load(
            partial_ptr + entry[:, None] * DIM + dim[None, :],
            mask=(lse > float("-inf"))[:, None] & is_dim[None, :],
            other=0.0,
        )
        result = tl.sum(partial * weights[:, None], 0) / tl.sum(weights, 0)

        out_row_ptr = out_ptr + first_token * out_token_stride
        out_row_ptr += token * out_token_stride + query_head * out_head_stride
        tl.store(out_row_ptr + dim, result.to(out_ptr.dtype.element_ty), mask=is_dim)
