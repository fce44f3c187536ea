# mypy: disable-error-code="no-untyped-def"
"""Blocks of keys of all tiles, tile after tile, divided equally among programs.

Whatever the tiles, all programs end together. Of a tile that it has alone a program knows the
answer; where programs meet in a tile each leaves a part, and a second kernel weighs the parts
(Flash-Decoding). Both kernels divide for themselves: lengths are known on the device alone.

A tile has a number of tokens and a context, up to and including the last of them, in columns whose
entries are STRIDE apart; without a column of numbers every tile has one token. A tile without
tokens or context has no blocks.
"""

from functools import cache

import torch
import triton
import triton.language as tl

_TILES: tl.constexpr = tl.constexpr(32)
"""Looked at together, within a warp."""


@cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of `device`; few under the interpreter, so that programs meet in tiles."""
    if device.type != "cuda":
        return 6
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def first_key_of(context, count, window):
    """The first key that any query of a tile sees."""
    first_key = context * 0
    if window is not None:
        first_key = tl.maximum(context - count + 1 - window, 0)
    return first_key


@triton.jit
def num_blocks(context, count, window, BLOCK_KEYS: tl.constexpr):
    """Blocks of keys that a tile sees."""
    first_block = first_key_of(context, count, window) // BLOCK_KEYS
    return tl.where((context > 0) & (count > 0), tl.cdiv(context, BLOCK_KEYS) - first_block, 0)


@triton.jit
def _some_blocks(
    some,
    contexts_ptr,
    counts_ptr,
    num_tiles,
    window,
    STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Blocks of some tiles."""
    tile = some + tl.arange(0, _TILES)
    is_tile = tile < num_tiles
    context = tl.load(contexts_ptr + tile * STRIDE, mask=is_tile, other=0).to(tl.int32)
    count = context * 0 + 1
    if counts_ptr is not None:
        count = tl.load(counts_ptr + tile * STRIDE, mask=is_tile, other=0).to(tl.int32)
    return num_blocks(context, count, window, BLOCK_KEYS)


@triton.jit
def divide(
    contexts_ptr,
    counts_ptr,
    num_tiles,
    num_shares,
    window,
    STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    MIN_BLOCKS: tl.constexpr,
):
    """Blocks of all tiles, and of a share: so many at least are worth a program."""
    all_blocks = 0
    for some in range(0, num_tiles, _TILES):
        blocks = _some_blocks(some, contexts_ptr, counts_ptr, num_tiles, window, STRIDE, BLOCK_KEYS)
        all_blocks += tl.sum(blocks, 0)
    return all_blocks, tl.maximum(tl.cdiv(all_blocks, num_shares), MIN_BLOCKS)


@triton.jit
def tile_of(
    block,
    contexts_ptr,
    counts_ptr,
    num_tiles,
    window,
    STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """The tile of a block, and that tile's first block."""
    tile = 0
    tile_begin = 0
    seen = 0
    for some in range(0, num_tiles, _TILES):
        blocks = _some_blocks(some, contexts_ptr, counts_ptr, num_tiles, window, STRIDE, BLOCK_KEYS)
        # It is the first that ends behind the block.
        is_before = seen + tl.cumsum(blocks, 0) <= block
        tile += tl.sum(is_before.to(tl.int32), 0)
        tile_begin += tl.sum(tl.where(is_before, blocks, 0), 0)
        seen += tl.sum(blocks, 0)
    return tile, tile_begin


@triton.jit
def shares_of(
    tile,
    share_blocks,
    contexts_ptr,
    counts_ptr,
    num_tiles,
    window,
    STRIDE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """The first and the last share that have blocks of a tile; of none the last is -1."""
    begin = 0
    own = 0
    for some in range(0, num_tiles, _TILES):
        blocks = _some_blocks(some, contexts_ptr, counts_ptr, num_tiles, window, STRIDE, BLOCK_KEYS)
        index = some + tl.arange(0, _TILES)
        begin += tl.sum(tl.where(index < tile, blocks, 0), 0)
        own += tl.sum(tl.where(index == tile, blocks, 0), 0)
    return begin // share_blocks, tl.where(own > 0, (begin + own - 1) // share_blocks, -1)


@triton.jit
def part_of(share, is_first):
    """Where a share leaves its part of a tile.

    It may have the first part of one tile that it divides with others, and a later part of one.
    """
    return 2 * share + is_first.to(tl.int32)
