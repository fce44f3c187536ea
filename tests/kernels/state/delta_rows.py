"""Rows of layers that keep states, as columns."""

from collections.abc import Sequence

import torch

from raydix.kernels.attention.rows import DecodeRows


def whole_rows(
    rows: Sequence[tuple[int, int, int]], device: torch.device | None = None
) -> tuple[DecodeRows, ...]:
    """`AttentionRows.sequences` of rows whose tokens follow each other.

    `rows`: the row in the block tables, its tokens, and its context with them.
    """
    table = torch.tensor(rows, device=device)
    rows_B, counts_B, contexts_B = table.unbind(1)
    tokens_B = counts_B.cumsum(0) - counts_B
    parts = []
    for is_chosen_B, has_counts in ((counts_B == 1, False), (counts_B > 1, True)):
        parts.append(
            DecodeRows(
                rows_B=rows_B[is_chosen_B],
                tokens_B=tokens_B[is_chosen_B],
                context_tokens_B=contexts_B[is_chosen_B],
                max_context_tokens=int(contexts_B.max()),
                num_tokens_B=counts_B[is_chosen_B] if has_counts else None,
                tokens_per_tile=int(counts_B.max()) if has_counts else 1,
            )
        )
    return tuple(part for part in parts if len(part.rows_B))
