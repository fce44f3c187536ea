"""Plain PyTorch twin of attention over pages.

Legend: T tokens of the step, R rows of the block tables, N pages of a block table, B rows of a
batch, H KV heads, G query heads per KV head, Q query heads, D head dim, P pages, L layers of the KV
group, S slots per page, or cached tokens of a row.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from raydix.kernels.attention_rows import AttentionRows, DecodeRows, PrefillRow

QUERY_BLOCK = 256
"""Queries of a row that are scored at a time: bounds the score matrix to QUERY_BLOCK x context."""


def paged_attention(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: AttentionRows,
    scale: float,
) -> Tensor:
    """Causal attention of every row over its cached tokens, of which this step's are the last.

    block_tables_RN: int, one row per request. The softmax is in float32. Returns [T, Q, D].
    """
    out_TQD = torch.empty_like(q_TQD)
    for decode in rows.decode:
        if decode.num_tokens_B is None:
            num_pages = -(-decode.max_context_tokens // pool_PLH2SD.shape[4])
            tables_BN = block_tables_RN[decode.rows_B, :num_pages]
            out_TQD[decode.tokens_B] = _decode_attention(
                q_TQD[decode.tokens_B],
                pool_PLH2SD,
                layer,
                tables_BN,
                decode.context_tokens_B,
                scale,
            )

    tiles = [tile for decode in rows.decode for tile in _tiles(decode)]
    for row in (*rows.prefill, *tiles):
        tokens = slice(row.first_token, row.first_token + row.num_tokens)
        num_pages = -(-row.context_tokens // pool_PLH2SD.shape[4])
        k_1HSD, v_1HSD = _gather_pages(
            pool_PLH2SD, layer, block_tables_RN[row.row : row.row + 1, :num_pages]
        )
        k_HSD, v_HSD = k_1HSD[0, :, : row.context_tokens], v_1HSD[0, :, : row.context_tokens]
        out_TQD[tokens] = _prefill_attention(q_TQD[tokens], k_HSD, v_HSD, scale)
    return out_TQD


def _tiles(decode: DecodeRows) -> list[PrefillRow]:
    """Tiles of several tokens as rows of their own. Waits for the device."""
    if decode.num_tokens_B is None:
        return []
    columns = (decode.rows_B, decode.tokens_B, decode.num_tokens_B, decode.context_tokens_B)
    return [
        PrefillRow(
            row=row, first_token=first_token, num_tokens=num_tokens, context_tokens=context_tokens
        )
        for row, first_token, num_tokens, context_tokens in zip(
            *(c.tolist() for c in columns), strict=True
        )
        if context_tokens
    ]


def _gather_pages(pool_PLH2SD: Tensor, layer: int, tables_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Copy out each row's keys and values, [B, H, N * S, D] each."""
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    batch, num_pages = tables_BN.shape
    heads_H1 = torch.arange(num_heads, device=tables_BN.device)[:, None]
    keys_BHN = ((tables_BN.long() * num_layers + layer)[:, None] * num_heads + heads_H1) * 2
    chosen = torch.stack((keys_BHN, keys_BHN + 1)).flatten()
    # Selecting whole rows of a flat view is several times faster than indexing the six dimensions.
    kv = pool_PLH2SD.view(-1, page_size * head_dim).index_select(0, chosen)
    k_BHSD, v_BHSD = kv.view(2, batch, num_heads, num_pages * page_size, head_dim)
    return k_BHSD, v_BHSD


def _decode_attention(
    q_BQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    tables_BN: Tensor,
    context_tokens_B: Tensor,
    scale: float,
) -> Tensor:
    """One query per row, rows padded to one length."""
    page_size, head_dim = pool_PLH2SD.shape[4:]
    batch, num_pages = tables_BN.shape
    # Padding has a weight of zero, but zero times a NaN that a page's last owner left is NaN. So
    # pages past a row's end are read as its first one, and the rest of its last page is cleared.
    last_page_B = (context_tokens_B - 1) // page_size
    pages_N = torch.arange(num_pages, device=tables_BN.device)
    tables_BN = torch.where(pages_N <= last_page_B[:, None], tables_BN, tables_BN[:, :1])
    k_BHSD, v_BHSD = _gather_pages(pool_PLH2SD, layer, tables_BN)
    _clear_page_ends(v_BHSD, last_page_B, context_tokens_B, page_size)
    is_padding_BS = torch.arange(k_BHSD.shape[2], device=q_BQD.device) >= context_tokens_B[:, None]
    q_BHGD = q_BQD.view(batch, k_BHSD.shape[1], -1, head_dim)
    scores_BHGS = (q_BHGD @ k_BHSD.transpose(2, 3)).float() * scale
    scores_BHGS = scores_BHGS.masked_fill_(is_padding_BS[:, None, None], float("-inf"))
    out_BHGD = scores_BHGS.softmax(-1).to(q_BQD.dtype) @ v_BHSD
    return out_BHGD.reshape(batch, -1, head_dim)


def _clear_page_ends(
    v_BHSD: Tensor, last_page_B: Tensor, context_tokens_B: Tensor, page_size: int
) -> None:
    """Zero each row's last page past the row's end, in place."""
    batch, num_heads, _, head_dim = v_BHSD.shape
    offsets_S = torch.arange(page_size, device=v_BHSD.device)
    is_past_BS = last_page_B[:, None] * page_size + offsets_S >= context_tokens_B[:, None]
    pages_BHNSD = v_BHSD.view(batch, num_heads, -1, page_size, head_dim)
    index_B1111 = last_page_B.view(-1, 1, 1, 1, 1).expand(-1, num_heads, 1, page_size, head_dim)
    last_BH1SD = pages_BHNSD.gather(2, index_B1111).masked_fill_(
        is_past_BS[:, None, None, :, None], 0.0
    )
    pages_BHNSD.scatter_(2, index_B1111, last_BH1SD)


def _prefill_attention(q_TQD: Tensor, k_HSD: Tensor, v_HSD: Tensor, scale: float) -> Tensor:
    num_tokens, num_query_heads, head_dim = q_TQD.shape
    num_heads, context, _ = k_HSD.shape
    group = num_query_heads // num_heads
    key_positions_S = torch.arange(context, device=q_TQD.device)
    out_TQD = torch.empty_like(q_TQD)
    for start, stop in _blocks(num_tokens, QUERY_BLOCK):
        # Key positions past the block's last query are visible to none of it.
        visible = context - num_tokens + stop
        q_HXD = (
            q_TQD[start:stop]
            .view(-1, num_heads, group, head_dim)
            .permute(1, 2, 0, 3)
            .reshape(num_heads, -1, head_dim)
        )
        scores_HXS = (q_HXD @ k_HSD[:, :visible].transpose(1, 2)).float() * scale
        scores_HGTS = scores_HXS.view(num_heads, group, stop - start, visible)
        is_future_TS = (
            key_positions_S[:visible] > key_positions_S[visible - (stop - start) : visible, None]
        )
        weights_HGTS = (
            scores_HGTS.masked_fill(is_future_TS, float("-inf")).softmax(-1).to(q_TQD.dtype)
        )
        out_HXD = weights_HGTS.view(num_heads, -1, visible) @ v_HSD[:, :visible]
        out_HGTD = out_HXD.view(num_heads, group, stop - start, head_dim)
        out_TQD[start:stop] = out_HGTD.permute(2, 0, 1, 3).reshape(
            stop - start, num_query_heads, head_dim
        )
    return out_TQD


def _blocks(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)
