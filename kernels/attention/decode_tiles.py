"""Tiles of a few query tokens each, and how many splits their keys are divided into.

Legend: T tokens of the step, B tiles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SPLITS = 64
_MIN_SPLIT_TOKENS = 64
_MAX_SPLIT_TOKENS = 8192
"""The most tokens of a split: one long row must not keep a few programs busy after all others."""
_PROGRAMS_PER_SM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiles:
    """Which tokens attend to which rows; all tensors int32 or int64, on the device."""

    rows_B: Tensor
    """The row of the block tables that each tile uses."""
    tokens_B: Tensor
    """The index in T of each tile's first token."""
    context_tokens_B: Tensor
    """The number of cached tokens up to and including each tile's last token; 0 skips the tile."""
    num_tokens_B: Tensor | None = None
    """The number of tokens of each tile, at most `tokens_per_tile`; None: every tile has one."""
    tokens_per_tile: int = 1


def choose_num_splits(
    num_tiles: int,
    programs_per_tile: int,
    max_visible_tokens: int,
    num_sms: int,
    programs_per_sm: int = _PROGRAMS_PER_SM,
) -> int:
    """Splits for a bucket of batches, a power of two that gives every multiprocessor work.

    programs_per_tile: without splits, one for each KV head or block of query rows.
    max_visible_tokens: the most keys that a tile sees. No split is needlessly short or long.
    """
    to_fill = min(
        programs_per_sm * num_sms // max(num_tiles * programs_per_tile, 1),
        max_visible_tokens // _MIN_SPLIT_TOKENS,
    )
    to_balance = -(-max_visible_tokens // _MAX_SPLIT_TOKENS)
    wanted = max(to_fill, to_balance, 1)
    return min(1 << (wanted.bit_length() - 1), MAX_SPLITS)


def check_tiles(tiles: DecodeTiles, num_splits: int) -> None:
    """Raise ValueError if a column's dtype or shape is not what the kernels read."""
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"num_splits is {num_splits}; expected 1 to {MAX_SPLITS}.")
    columns = [tiles.rows_B, tiles.tokens_B, tiles.context_tokens_B]
    columns += [tiles.num_tokens_B] if tiles.num_tokens_B is not None else []
    if any(
        column.dtype not in (torch.int32, torch.int64) or not column.is_contiguous()
        for column in columns
    ):
        raise ValueError(
            f"Tiles have columns of {[column.dtype for column in columns]}; expected int32 or "
            f"int64."
        )
    if any(column.shape != tiles.rows_B.shape or column.dim() != 1 for column in columns):
        raise ValueError(
            f"Tiles have columns of {[tuple(column.shape) for column in columns]}; expected one "
            f"length."
        )

    if tiles.tokens_per_tile < 1:
        raise ValueError(f"tokens_per_tile is {tiles.tokens_per_tile}; expected 1 or more.")
    if tiles.num_tokens_B is None and tiles.tokens_per_tile != 1:
        raise ValueError(f"Tiles of {tiles.tokens_per_tile} tokens need num_tokens_B.")
