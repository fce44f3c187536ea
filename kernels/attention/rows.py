"""How the tokens of a step divide into rows, each of which attends to its own context.

Legend: T tokens of the step, B rows or tiles of rows, X tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """A row of several tokens, whose lengths the host knows.

    `first_token` is an index in T, `row` one in the block tables.
    """

    row: int
    first_token: int
    num_tokens: int
    context_tokens: int
    """The number of tokens in the cache after this step, with those of this row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeRows:
    """Rows, or tiles of rows, of one or a few tokens each; all int64. The host need not know them.

    Among `AttentionRows.sequences` they may have many.
    """

    rows_B: Tensor
    """The row of the block tables that each row of attention uses."""
    tokens_B: Tensor
    """The index in T of each row's first token."""
    context_tokens_B: Tensor
    """The number of cached tokens up to and including each row's last token; 0 skips the row."""
    max_context_tokens: int
    """An upper bound on all entries of `context_tokens_B`."""
    num_tokens_B: Tensor | None = None
    """The number of tokens of each row, at most `tokens_per_tile`; None: every row has one."""
    tokens_per_tile: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """How the tokens of a step divide into rows."""

    decode: tuple[DecodeRows, ...] = ()
    tiles_X4: Tensor | None = None
    """The rows of several tokens, cut into tiles by `cut_rows`; None: there are no such rows."""
    expanded: tuple[PrefillRow, ...] = ()
    """The rows of many tokens whose latents are expanded to keys and values, in no other field."""
    sequences: tuple[DecodeRows, ...] = ()
    """All rows, whole, those of one token apart: for layers that keep states, if there are any."""


def cut_rows(rows: Sequence[PrefillRow], tile_tokens: int) -> NDArray[np.int32]:
    """Cut rows into tiles of at most `tile_tokens`, int32 [X, 4], longest first.

    A tile is (row in the block tables, first index in T, tokens, context up to and including the
    last of them); one without tokens does nothing. The same table serves all layers of a step; copy
    it to the device once.
    """
    tiles = [
        (
            row.row,
            row.first_token + start,
            stop - start,
            row.context_tokens - row.num_tokens + stop,
        )
        for row in rows
        for start in range(0, row.num_tokens, tile_tokens)
        for stop in [min(start + tile_tokens, row.num_tokens)]
    ]

    # Those with the most keys first, so that none of them starts when all others have ended.
    tiles.sort(key=lambda tile: -tile[3])
    return np.array(tiles, dtype=np.int32).reshape(-1, 4)
