"""How the tokens of a step divide into rows, each of which attends to its own context.

Legend: T tokens of the step, B rows or tiles of rows, X tiles.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """A row of several tokens. `first_token` indexes T, `row` the block tables; lengths are known
    on the host.
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
    """None of them has a longer context."""
    num_tokens_B: Tensor | None = None
    """At most `tokens_per_tile`; None: one each."""
    tokens_per_tile: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """How the tokens of a step divide into rows."""

    prefill: tuple[PrefillRow, ...]
    decode: tuple[DecodeRows, ...]
    tiles_X4: Tensor | None = None
    """int32, those of `prefill` that are not in `decode` too, cut up for the GPU: (row in the block
    tables, first index in T, tokens, position of the first token). The twins do without."""
