"""Plain PyTorch twins of latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1), in absorbed form.

All query heads look at one vector per token, the latent: its first V dims are the value, all D of
them the key, of which the last D - V are rotated.

Legend: T tokens of the step, R rows of the block tables, N pages of a block table, B rows of a
batch, Q query heads, D dims of a latent, V of its value, P pages, L layers of the KV group, S cells
per page, or cached tokens of a row.
"""

import torch
from torch import Tensor

from raydix.kernels.attention.rows import AttentionRows
from raydix.kernels.reference.paged_attention import rows_of_tiles, single_tokens

QUERY_BLOCK = 256
"""The queries of a row that are scored at a time; bounds the scores to QUERY_BLOCK x context."""


def write_latent(latent_TD: Tensor, pool_PLSD: Tensor, layer: int, cells_T: Tensor) -> None:
    """Scatter this step's latents of one layer into the paged cache, in place.

    cells_T: int64, page * S + offset. -1 skips a token: it goes to the padding page, which
    nobody reads.
    """
    page_size = pool_PLSD.shape[2]
    cells_T = cells_T.clamp_min(0)
    pool_PLSD[cells_T // page_size, layer, cells_T % page_size] = latent_TD


def latent_attention(
    q_TQD: Tensor,
    pool_PLSD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: AttentionRows,
    *,
    scale: float,
    value_dim: int,
) -> Tensor:
    """Causal attention of every row over its cached tokens, of which this step's are the last.

    block_tables_RN: int, one row per request. The softmax is in float32. Returns [T, Q, V] with V =
    `value_dim`.
    """
    out_TQV = q_TQD.new_empty((*q_TQD.shape[:2], value_dim))
    for single in single_tokens(rows):
        num_pages = -(-single.max_context_tokens // pool_PLSD.shape[2])
        tables_BN = block_tables_RN[single.rows_B, :num_pages].long()
        latent_BSD = pool_PLSD[tables_BN, layer].flatten(1, 2)
        out_TQV[single.tokens_B] = _decode_attention(
            q_TQD[single.tokens_B], latent_BSD, single.context_tokens_B, scale, value_dim
        )

    for row in rows_of_tiles(rows):
        tokens = slice(row.first_token, row.first_token + row.num_tokens)
        num_pages = -(-row.context_tokens // pool_PLSD.shape[2])
        pages_N = block_tables_RN[row.row, :num_pages].long()
        latent_SD = pool_PLSD[pages_N, layer].flatten(0, 1)[: row.context_tokens]
        out_TQV[tokens] = _prefill_attention(q_TQD[tokens], latent_SD, scale, value_dim)
    return out_TQV


def _decode_attention(
    q_BQD: Tensor, latent_BSD: Tensor, context_tokens_B: Tensor, scale: float, value_dim: int
) -> Tensor:
    """One query per row, rows padded to one length. Clears the padding of `latent_BSD`."""
    is_padding_BS = (
        torch.arange(latent_BSD.shape[1], device=q_BQD.device) >= context_tokens_B[:, None]
    )
    # Padding has a weight of zero, but zero times a NaN that a page's last owner left is NaN.
    latent_BSD.masked_fill_(is_padding_BS[..., None], 0.0)

    scores_BQS = (q_BQD @ latent_BSD.transpose(1, 2)).float() * scale
    scores_BQS = scores_BQS.masked_fill_(is_padding_BS[:, None], float("-inf"))
    return scores_BQS.softmax(-1).to(q_BQD.dtype) @ latent_BSD[..., :value_dim]


def _prefill_attention(q_TQD: Tensor, latent_SD: Tensor, scale: float, value_dim: int) -> Tensor:
    num_tokens, num_heads, _ = q_TQD.shape
    context = latent_SD.shape[0]
    positions_S = torch.arange(context, device=q_TQD.device)
    out_TQV = q_TQD.new_empty((num_tokens, num_heads, value_dim))

    for start in range(0, num_tokens, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, num_tokens)
        # Key positions past the block's last query are visible to none of it.
        first, visible = context - num_tokens + start, context - num_tokens + stop
        scores_TQS = (q_TQD[start:stop] @ latent_SD[:visible].T).float() * scale
        is_future_TS = positions_S[:visible] > positions_S[first:visible, None]

        weights_TQS = scores_TQS.masked_fill_(is_future_TS[:, None], float("-inf")).softmax(-1)
        out_TQV[start:stop] = weights_TQS.to(q_TQD.dtype) @ latent_SD[:visible, :value_dim]
    return out_TQV
