"""How the tokens of a step divide into rows, each of which attends to its own context.

Legend: T tokens of the step, B rows or tiles of rows, X tiles.
"""

from dataclasses import dataclass

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
    """Tokens in the cache after this step, those of this row included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeRows:
    """Rows, or tiles of rows, of a few tokens each; all int64. The host need not know them."""

    rows_B: Tensor
    """Row in the block tables."""
    tokens_B: Tensor
    """Index in T of the first token."""
    context_tokens_B: Tensor
    """Cached tokens up to and including the last token; 0 skips a tile."""
    max_context_tokens: int
    """The longest context, or more."""
    num_tokens_B: Tensor | None = None
    """How many tokens each has, at most `tokens_per_tile`; None: one each."""
    tokens_per_tile: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """How the tokens of a step divide into rows."""

    prefill: tuple[PrefillRow, ...]
    decode: tuple[DecodeRows, ...]
    expanded: tuple[PrefillRow, ...] = ()
    """Rows of many tokens whose latents are expanded to keys and values; in no other field."""
    tiles_X4: Tensor | None = None
    """The rows of `prefill` that are not in `decode` too, cut into tiles for the GPU.

    int32 columns: row in the block tables, first index in T, tokens, position of the first token.
    The twins do without.
    """
