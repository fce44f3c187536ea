"""Latent attention with keys and values expanded from latents, for rows of many new tokens.

Per pair of tokens it takes a third of the arithmetic of the absorbed form, but every cached token
has to be expanded first. Plain PyTorch operations, whose attention is the fastest that the device
has for it.

Legend: T tokens of the step, R rows of the block tables, N pages of a block table, Q query heads, H
heads of a pass, X dims of a head's key, V of its value, Y dims of both that are made of a latent, A
those of a latent that they are made of, D all of a latent, P pages, L layers of the KV group, S
tokens per page, or cached tokens of a row.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.attention.rows import PrefillRow

PASS_ELEMENTS = 128 << 20
"""The number of key elements that are expanded at a time (at least one head's), to bound memory."""
WIDTH_STEP = 8
"""The number of dimensions of which keys and values are padded to a multiple."""


def expanded_latent_attention(
    q_TQX: Tensor,
    pool_PLSD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: Sequence[PrefillRow],
    up_QYA: Tensor,
    *,
    scale: float,
    out_TQV: Tensor,
) -> None:
    """Causal attention of every row over its cached tokens, of which this step's are the last.

    q_TQX: not absorbed, the rotated dims last. up_QYA: from latents to the dims of keys that are
    not rotated, then to those of values. Fills `out_TQV` where tokens of `rows` are.
    """
    for row in rows:
        tokens = slice(row.first_token, row.first_token + row.num_tokens)
        num_pages = -(-row.context_tokens // pool_PLSD.shape[2])
        pages_N = block_tables_RN[row.row, :num_pages].long()
        latent_SD = pool_PLSD[pages_N, layer].flatten(0, 1)[: row.context_tokens]
        for heads in _passes(q_TQX, row):
            out_TQV[tokens, heads] = _attend(
                q_TQX[tokens, heads], latent_SD, up_QYA[heads], scale, out_TQV.shape[2]
            )


def _passes(q_TQX: Tensor, row: PrefillRow) -> Iterator[slice]:
    """Runs of heads."""
    _, num_heads, key_dim = q_TQX.shape
    size = max(1, PASS_ELEMENTS // (row.context_tokens * key_dim))
    for start in range(0, num_heads, size):
        yield slice(start, start + size)


def _attend(
    q_THX: Tensor, latent_SD: Tensor, up_HYA: Tensor, scale: float, value_dim: int
) -> Tensor:
    """The attention of some heads of one row, [T, H, V]."""
    # Imported here: it brings torch's compiler along, seconds that every start would wait for.
    from torch.nn.attention.bias import causal_lower_right

    num_tokens, num_heads, key_dim = q_THX.shape
    context, rank = latent_SD.shape[0], up_HYA.shape[2]
    expanded_SHY = functional.linear(latent_SD[:, :rank], up_HYA.flatten(0, 1)).unflatten(
        1, (num_heads, -1)
    )
    plain_SHX, value_SHV = expanded_SHY.split((up_HYA.shape[1] - value_dim, value_dim), dim=-1)
    rotated_SHX = latent_SD[:, None, rank:].expand(-1, num_heads, -1)
    k_SHX = torch.cat((plain_SHX, rotated_SHX), dim=-1)
    # The fast kernels want values as wide as keys, and whole words.
    width = -(-max(key_dim, value_dim) // WIDTH_STEP) * WIDTH_STEP
    q_1HTX, k_1HSX, v_1HSX = (
        functional.pad(each, (0, width - each.shape[-1])).transpose(0, 1)[None]
        for each in (q_THX, k_SHX, value_SHV)
    )

    out_1HTX = functional.scaled_dot_product_attention(
        q_1HTX, k_1HSX, v_1HSX, attn_mask=causal_lower_right(num_tokens, context), scale=scale
    )
    return out_1HTX[0].transpose(0, 1)[..., :value_dim]
