# mypy: disable-error-code="no-untyped-def"
"""Attention over pages of latents (DeepSeek-V2, arXiv:2405.04434, 2.1), in absorbed form.

All query heads look at one vector per token, the latent: all of it is the key, its first dims are
the value. A program takes a block of query rows (token and head) and reads each latent once for all
of them. Decode divides a row's keys into splits, as `paged_decode` does; lengths are read on the
device, so a CUDA graph can hold its launches. Prefill is the same kernel with one split.

Legend: T tokens of the step, X tiles, R rows of the block tables, N pages of a block table, Q query
heads, D dims of a latent, V of its value, P pages, L layers of the KV group, S tokens per page.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.decode_tiles import DecodeTiles, check_tiles, choose_num_splits
from raydix.kernels.attention.latent_wide import BLOCK_ROWS, NUM_WARPS, attend_wide, is_wide_enough
from raydix.kernels.attention.paged_prefill import check_tile_table, tile_tokens
from raydix.kernels.attention.scores import LOG2_E
from raydix.kernels.attention.split_combine import combine_splits


def latent_decode(
    q_TQD: Tensor,
    pool_PLSD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles: DecodeTiles,
    *,
    scale: float,
    num_splits: int,
    out_TQV: Tensor,
) -> None:
    """Attend for the tiles' tokens, into their rows of `out_TQV`; all others are left alone.

    q, pool and out: bf16 or float32 (IEEE arithmetic), contiguous in D and V. block_tables_RN:
    int32. The softmax is in float32. Raises ValueError if a shape, dtype or stride differs.
    """
    _check_inputs(q_TQD, pool_PLSD, layer, block_tables_RN, out_TQV)
    check_tiles(tiles, num_splits)
    num_tiles, num_heads, value_dim = len(tiles.rows_B), *out_TQV.shape[1:]
    if num_tiles == 0:
        return

    num_tile_tokens = num_tiles * tiles.tokens_per_tile
    partial_XTQV = q_TQD.new_empty(
        (num_splits, num_tile_tokens, num_heads, value_dim), dtype=torch.float32
    )
    lse_XTQ = q_TQD.new_empty((num_splits, num_tile_tokens, num_heads), dtype=torch.float32)
    blocks = _choose_blocks(tiles.tokens_per_tile * num_heads, q_TQD.dtype)
    kernel, constants = _choose_kernel(pool_PLSD, out_TQV, blocks)
    kernel[(blocks.count, num_splits, num_tiles)](
        q_TQD,
        pool_PLSD,
        block_tables_RN,
        tiles.rows_B,
        tiles.tokens_B,
        tiles.context_tokens_B,
        tiles.num_tokens_B,
        out_TQV if num_splits == 1 else partial_XTQV,
        lse_XTQ,
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQV.stride(0),
        out_TQV.stride(1),
        pool_PLSD.stride(0),
        layer * pool_PLSD.stride(1),
        block_tables_RN.stride(0),
        scale * LOG2_E,
        TILE_TOKENS=tiles.tokens_per_tile,
        IS_WHOLE=num_splits == 1,
        **constants,
    )
    if num_splits > 1:
        combine_splits(partial_XTQV, lse_XTQ, tiles, out_TQV)


def latent_prefill(
    q_TQD: Tensor,
    pool_PLSD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    tiles_X4: Tensor,
    *,
    scale: float,
    out_TQV: Tensor,
) -> None:
    """Attend as `latent_decode` does, for the tiles of `cut_rows`."""
    _check_inputs(q_TQD, pool_PLSD, layer, block_tables_RN, out_TQV)
    check_tile_table(tiles_X4)
    if tiles_X4.shape[0] == 0:
        return

    tokens_per_tile = tile_tokens(q_TQD.dtype)
    blocks = _choose_blocks(tokens_per_tile * q_TQD.shape[1], q_TQD.dtype)
    kernel, constants = _choose_kernel(pool_PLSD, out_TQV, blocks)
    kernel[(blocks.count, 1, tiles_X4.shape[0])](
        q_TQD,
        pool_PLSD,
        block_tables_RN,
        tiles_X4,
        None,
        None,
        None,
        out_TQV,
        None,
        q_TQD.stride(0),
        q_TQD.stride(1),
        out_TQV.stride(0),
        out_TQV.stride(1),
        pool_PLSD.stride(0),
        layer * pool_PLSD.stride(1),
        block_tables_RN.stride(0),
        scale * LOG2_E,
        TILE_TOKENS=tokens_per_tile,
        IS_WHOLE=True,
        **constants,
    )


def choose_latent_splits(
    num_tiles: int, rows_per_tile: int, max_context_tokens: int, num_sms: int, dtype: torch.dtype
) -> int:
    """Choose splits as `choose_num_splits` does, for tiles of so many query rows."""
    blocks = _choose_blocks(rows_per_tile, dtype)
    # A full block takes the shared memory of a multiprocessor, where two others fit.
    halves = blocks.count * (2 if blocks.rows == BLOCK_ROWS else 1)
    return choose_num_splits(num_tiles, halves, max_context_tokens, num_sms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """How a tile's query rows, and the keys, are cut."""

    count: int
    rows: int
    keys: int
    stages: int
    warps: int


def _choose_blocks(num_query_rows: int, dtype: torch.dtype) -> _Blocks:
    if dtype == torch.float32:
        return _Blocks(count=-(-num_query_rows // 16), rows=16, keys=16, stages=3, warps=4)
    rows = min(max(triton.next_power_of_2(num_query_rows), 16), BLOCK_ROWS)
    # At 64 x 8,192 tokens 16 heads read 3.6 TB/s, 32 heads 3.0 (H200, 2026-11-22): two programs per
    # multiprocessor hide each other's loads.
    is_full = rows == BLOCK_ROWS
    return _Blocks(
        count=-(-num_query_rows // rows),
        rows=rows,
        keys=64,
        stages=2 if is_full else 3,
        warps=8 if is_full else 4,
    )


def _choose_kernel(
    pool_PLSD: Tensor, out_TQV: Tensor, blocks: _Blocks
) -> tuple[triton.JITFunction, dict[str, object]]:
    """The kernel for such blocks, and what it is compiled for."""
    page_size, dim = pool_PLSD.shape[2:]
    num_heads, value_dim = out_TQV.shape[1:]
    constants: dict[str, object] = {
        "HEADS": num_heads,
        "PAGE": page_size,
        "DIM": dim,
        "VALUE": value_dim,
    }
    if blocks.rows == BLOCK_ROWS and is_wide_enough(pool_PLSD, value_dim):
        return attend_wide, constants | {"num_warps": NUM_WARPS}

    return _attend_latents, constants | {
        "BLOCK_VALUE": max(16, triton.next_power_of_2(value_dim)),
        "BLOCK_REST": max(16, triton.next_power_of_2(dim - value_dim)),
        "BLOCK_ROWS": blocks.rows,
        "BLOCK_KEYS": blocks.keys,
        "PRECISION": "ieee" if pool_PLSD.dtype == torch.float32 else None,
        "STAGES": blocks.stages,
        "num_warps": blocks.warps,
    }


def _check_inputs(
    q_TQD: Tensor, pool_PLSD: Tensor, layer: int, block_tables_RN: Tensor, out_TQV: Tensor
) -> None:
    if q_TQD.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Queries are {q_TQD.dtype}; expected bfloat16 or float32.")
    if pool_PLSD.dtype != q_TQD.dtype or out_TQV.dtype != q_TQD.dtype:
        raise ValueError(
            f"Pool {pool_PLSD.dtype} and out {out_TQV.dtype} do not match queries {q_TQD.dtype}."
        )

    if pool_PLSD.dim() != 4 or not pool_PLSD.is_contiguous():
        raise ValueError(f"The pool is {tuple(pool_PLSD.shape)}; expected contiguous [P, L, S, D].")
    _, num_layers, page_size, dim = pool_PLSD.shape
    if not 0 <= layer < num_layers:
        raise ValueError(f"Layer {layer} is not among the pool's {num_layers}.")
    if page_size & (page_size - 1):
        raise ValueError(f"The page size is {page_size}; expected a power of two.")

    if q_TQD.dim() != 3 or q_TQD.shape[2] != dim or q_TQD.stride(2) != 1:
        raise ValueError(
            f"Queries are {tuple(q_TQD.shape)}; expected [T, Q, {dim}], contiguous in D."
        )
    if (
        out_TQV.shape[:-1] != q_TQD.shape[:-1]
        or not 0 < out_TQV.shape[-1] < dim
        or out_TQV.stride(2) != 1
    ):
        raise ValueError(
            f"Out is {tuple(out_TQV.shape)}; expected {tuple(q_TQD.shape[:-1])} and less than "
            f"{dim}, contiguous in V."
        )
    if (
        block_tables_RN.dtype != torch.int32
        or block_tables_RN.dim() != 2
        or block_tables_RN.stride(1) != 1
    ):
        raise ValueError(
            f"The block tables are {block_tables_RN.dtype}; expected int32 [R, N], contiguous in N."
        )


@triton.jit
def _load_tile(tile, rows_ptr, tokens_ptr, contexts_ptr, counts_ptr):
    """The tile's row in the block tables, first token, tokens and context.

    If tokens_ptr is None, rows_ptr is a table of `cut_rows`.
    """
    if tokens_ptr is None:
        row = tl.load(rows_ptr + tile * 4)
        first_token = tl.load(rows_ptr + tile * 4 + 1)
        count = tl.load(rows_ptr + tile * 4 + 2)
        context = tl.load(rows_ptr + tile * 4 + 3)
    else:
        row = tl.load(rows_ptr + tile)
        first_token = tl.load(tokens_ptr + tile)
        count = 1 if counts_ptr is None else tl.load(counts_ptr + tile).to(tl.int32)
        context = tl.load(contexts_ptr + tile).to(tl.int32)
    return row.to(tl.int64), first_token.to(tl.int64), count, context


@triton.jit(do_not_specialize=["table_stride"])
def _attend_latents(
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
    HEADS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One split of one block of a tile's query rows; neighbouring programs share latents by L2."""
    first_row = tl.program_id(0) * BLOCK_ROWS
    split = tl.program_id(1)
    tile = tl.program_id(2)
    table_row, first_token, count, context = _load_tile(
        tile, rows_ptr, tokens_ptr, contexts_ptr, counts_ptr
    )
    table_ptr = tables_ptr + table_row * table_stride

    row = first_row + tl.arange(0, BLOCK_ROWS)
    token = row // HEADS
    head = row % HEADS
    is_query = (token < count) & (token < TILE_TOKENS) & (context > 0)
    value_dim = tl.arange(0, BLOCK_VALUE)
    is_value = (value_dim < VALUE)[None, :]
    rest_dim = VALUE + tl.arange(0, BLOCK_REST)
    is_rest = (rest_dim < DIM)[None, :]
    q_row_ptr = (q_ptr + (first_token + token) * q_token_stride + head * q_head_stride)[:, None]
    q_value = tl.load(q_row_ptr + value_dim[None, :], mask=is_query[:, None] & is_value, other=0.0)
    q_rest = tl.load(q_row_ptr + rest_dim[None, :], mask=is_query[:, None] & is_rest, other=0.0)
    # The last key that each query sees; rows of padding see what the last token sees.
    last_key = context - tl.maximum(count - token, 1)

    # A block sees the keys up to those of its last token; without tokens it sees none.
    last_token = tl.minimum((first_row + BLOCK_ROWS - 1) // HEADS, count - 1)
    end = tl.where(first_row // HEADS < count, context - count + last_token + 1, 0)
    split_keys = tl.cdiv(tl.cdiv(end, BLOCK_KEYS), tl.num_programs(1)) * BLOCK_KEYS
    start = split * split_keys
    stop = tl.minimum(start + split_keys, end)
    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_VALUE], tl.float32)
    for begin in tl.range(start, stop, BLOCK_KEYS, num_stages=STAGES):
        key = begin + tl.arange(0, BLOCK_KEYS)
        is_key = key < stop
        if PAGE >= BLOCK_KEYS:
            page = tl.load(table_ptr + begin // PAGE).to(tl.int64)
        else:
            page = tl.load(table_ptr + key // PAGE, mask=is_key, other=0).to(tl.int64)
        cell_ptr = (pool_ptr + layer_offset + page * page_stride + key % PAGE * DIM)[:, None]
        value = tl.load(cell_ptr + value_dim[None, :], mask=is_key[:, None] & is_value, other=0.0)
        rest = tl.load(cell_ptr + rest_dim[None, :], mask=is_key[:, None] & is_rest, other=0.0)

        scores = tl.dot(q_rest, tl.trans(rest), input_precision=PRECISION)
        scores = tl.dot(q_value, tl.trans(value), scores, input_precision=PRECISION) * scale_log2
        is_visible = is_key[None, :] & (key[None, :] <= last_key[:, None])
        scores = tl.where(is_visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A query may see no key of a split at all: then the maximum stays -inf, and -inf - -inf
        # would be NaN.
        shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(maximum - shift)
        total = total * decay + tl.sum(weights, 1)
        acc = tl.dot(
            weights.to(value.dtype), value, acc * decay[:, None], input_precision=PRECISION
        )
        maximum = new_maximum

    total = tl.where(total == 0.0, 1.0, total)
    result = acc / total[:, None]
    is_out = is_query[:, None] & is_value
    if IS_WHOLE:
        out_row_ptr = out_ptr + (first_token + token) * out_token_stride + head * out_head_stride
        tl.store(
            out_row_ptr[:, None] + value_dim[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=is_out,
        )
    else:
        tile_token = (split * tl.num_programs(2) + tile).to(tl.int64) * TILE_TOKENS + token
        out_row_ptr = out_ptr + (tile_token * HEADS + head) * VALUE
        tl.store(out_row_ptr[:, None] + value_dim[None, :], result, mask=is_out)
        tl.store(lse_ptr + tile_token * HEADS + head, maximum + tl.log2(total), mask=is_query)
