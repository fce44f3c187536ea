"""Plain PyTorch twin of attention over pages.

Legend: T tokens of the step, R rows of the block tables, N pages of a block table, B rows of a
batch, H KV heads, G query heads per KV head, Q query heads, D head dim, P pages, L layers of the KV
group, S tokens per page, or cached tokens of a row.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow

QUERY_BLOCK = 256
"""The queries of a row that are scored at a time; bounds the scores to QUERY_BLOCK x context."""

NARROWEST_BAND_TOKENS = 256
"""The context up to which rows are padded to one length: they take less time than another call."""


def paged_attention(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    block_tables_RN: Tensor,
    rows: AttentionRows,
    form: AttentionForm,
) -> Tensor:
    """Causal attention of every row over its cached tokens, of which this step's are the last.

    block_tables_RN: int, one row per request. Pages wholly behind `form.window` are not read, so
    their entries may be any page of the pool. The pool may be of FP8, whose numbers the queries'
    dtype has, too. The softmax is in float32. Returns [T, Q, D].
    """
    form = replace(form, kv_scales_2H=form.scales_of(pool_PLH2SD))
    out_TQD = torch.empty_like(q_TQD)
    for single in single_tokens(rows, form.window):
        num_pages = -(-single.max_context_tokens // pool_PLH2SD.shape[4])
        tables_BN = block_tables_RN[single.rows_B, :num_pages]
        out_TQD[single.tokens_B] = _decode_attention(
            q_TQD[single.tokens_B],
            pool_PLH2SD,
            layer,
            tables_BN,
            single.context_tokens_B,
            form,
        )

    for row in rows_of_tiles(rows):
        tokens = slice(row.first_token, row.first_token + row.num_tokens)
        out_TQD[tokens] = _prefill_attention(
            q_TQD[tokens], pool_PLH2SD, layer, block_tables_RN[row.row], row.context_tokens, form
        )
    return out_TQD


def single_tokens(rows: AttentionRows, window: int | None = None) -> Iterator[DecodeRows]:
    """The rows of one token each that are not skipped, in bands of similar length.

    Each band is padded to its longest row. `window`: how far rows look back, which bounds what they
    cost. Waits for the device.
    """
    for decode in rows.decode:
        if decode.num_tokens_B is not None:
            continue
        band_B = _bands(decode.context_tokens_B, window)
        for band in band_B.unique().tolist():
            if band < 0:
                continue
            is_in_band_B = band_B == band
            context_tokens_B = decode.context_tokens_B[is_in_band_B]
            yield replace(
                decode,
                rows_B=decode.rows_B[is_in_band_B],
                tokens_B=decode.tokens_B[is_in_band_B],
                context_tokens_B=context_tokens_B,
                max_context_tokens=int(context_tokens_B.max()),
            )


def _bands(context_tokens_B: Tensor, window: int | None) -> Tensor:
    """The band of each row, int64 [B]; -1: it is skipped.

    A band ends at twice the length of the one before, so that none of its rows is padded to more
    than twice its own length: a long context costs itself, not those beside it.
    """
    seen_B = context_tokens_B if window is None else context_tokens_B.clamp_max(window)
    widths_B = seen_B.clamp_min(NARROWEST_BAND_TOKENS).double() / NARROWEST_BAND_TOKENS
    return widths_B.log2().ceil().long().masked_fill(context_tokens_B == 0, -1)


def rows_of_tiles(rows: AttentionRows) -> list[PrefillRow]:
    """All tiles of several tokens as rows of their own. Waits for the device."""
    prompts = [] if rows.tiles_X4 is None else rows.tiles_X4.tolist()
    tiles = [
        PrefillRow(row=row, first_token=first, num_tokens=count, context_tokens=context)
        for row, first, count, context in prompts
    ]

    for decode in rows.decode:
        if decode.num_tokens_B is not None:
            tiles += rows_of_columns(decode)
    return [tile for tile in tiles if tile.context_tokens]


def rows_of_columns(rows: DecodeRows) -> list[PrefillRow]:
    """The rows that are not skipped, for the host. Waits for the device."""
    counts_B = rows.num_tokens_B
    if counts_B is None:
        counts_B = torch.ones_like(rows.rows_B)
    columns = rows.rows_B, rows.tokens_B, counts_B, rows.context_tokens_B
    return [
        PrefillRow(row=row, first_token=first, num_tokens=count, context_tokens=context)
        for row, first, count, context in zip(*(c.tolist() for c in columns), strict=True)
        if context
    ]


def _gather_pages(
    pool_PLH2SD: Tensor, layer: int, tables_BN: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Copy out each row's keys and values as `dtype`, [B, H, N * S, D] each."""
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    batch, num_pages = tables_BN.shape
    heads_H1 = torch.arange(num_heads, device=tables_BN.device)[:, None]
    keys_BHN = ((tables_BN.long() * num_layers + layer)[:, None] * num_heads + heads_H1) * 2
    chosen = torch.stack((keys_BHN, keys_BHN + 1)).flatten()
    # Selecting whole rows of a flat view is several times faster than indexing the six dimensions.
    kv = pool_PLH2SD.view(-1, page_size * head_dim).index_select(0, chosen).to(dtype)
    k_BHSD, v_BHSD = kv.view(2, batch, num_heads, num_pages * page_size, head_dim)
    return k_BHSD, v_BHSD


def _decode_attention(
    q_BQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    tables_BN: Tensor,
    context_tokens_B: Tensor,
    form: AttentionForm,
) -> Tensor:
    """One query per row, rows of one band padded to one length."""
    page_size, head_dim = pool_PLH2SD.shape[4:]
    first_page_B = torch.zeros_like(context_tokens_B)
    if form.window is not None:
        first_page_B = (context_tokens_B - form.window).clamp_min(0) // page_size
        tables_BN = _window_tables(tables_BN, first_page_B, form.window, page_size)

    k_BHSD, v_BHSD = _gather_pages(pool_PLH2SD, layer, tables_BN, q_BQD.dtype)
    offsets_S = torch.arange(k_BHSD.shape[2], device=q_BQD.device)
    positions_BS = first_page_B[:, None] * page_size + offsets_S
    is_hidden_BS = positions_BS >= context_tokens_B[:, None]
    if form.window is not None:
        is_hidden_BS |= positions_BS < (context_tokens_B - form.window)[:, None]
    # What is hidden has a weight of zero, but zero times a NaN that a page's last owner left is
    # NaN.
    v_BHSD.masked_fill_(is_hidden_BS[:, None, :, None], 0.0)

    batch, num_heads, _, _ = k_BHSD.shape
    q_BHGD = q_BQD.view(batch, num_heads, -1, head_dim)
    scores_BHGS = _scores(q_BHGD, k_BHSD, form)
    scores_BHGS = scores_BHGS.masked_fill_(is_hidden_BS[:, None, None], float("-inf"))
    weights_BHGS = _weights(scores_BHGS.flatten(1, 2), form.sinks_Q).view_as(scores_BHGS)
    return _sums(weights_BHGS.to(q_BQD.dtype), v_BHSD, form).reshape(batch, -1, head_dim)


def _window_tables(tables_BN: Tensor, first_page_B: Tensor, window: int, page_size: int) -> Tensor:
    """The part of each row's table that holds its window, moved to the front."""
    # A window that starts with the last cell of a page touches the most pages.
    num_pages = min((window + page_size - 2) // page_size + 1, tables_BN.shape[1])
    pages_BN = first_page_B[:, None] + torch.arange(num_pages, device=tables_BN.device)
    return tables_BN.gather(1, pages_BN.clamp_max(tables_BN.shape[1] - 1))


def _prefill_attention(
    q_TQD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    table_N: Tensor,
    context_tokens: int,
    form: AttentionForm,
) -> Tensor:
    """The queries of one row, which are the last of its context."""
    out_TQD = torch.empty_like(q_TQD)
    page_size, num_tokens = pool_PLH2SD.shape[4], q_TQD.shape[0]
    for start, stop in _blocks(num_tokens, QUERY_BLOCK):
        # Keys that no query of the block sees: those past its last, those behind its first's
        # window.
        first_query = context_tokens - num_tokens + start
        end = context_tokens - num_tokens + stop
        begin = 0 if form.window is None else max(first_query - form.window + 1, 0)

        first_page = begin // page_size
        pages_N = table_N[first_page : -(-end // page_size)]
        k_1HSD, v_1HSD = _gather_pages(pool_PLH2SD, layer, pages_N[None], q_TQD.dtype)
        seen = slice(begin - first_page * page_size, end - first_page * page_size)
        out_TQD[start:stop] = _block_attention(
            q_TQD[start:stop], k_1HSD[0, :, seen], v_1HSD[0, :, seen], form
        )
    return out_TQD


def _block_attention(q_TQD: Tensor, k_HSD: Tensor, v_HSD: Tensor, form: AttentionForm) -> Tensor:
    """Queries whose positions are the last of the keys'."""
    num_tokens, num_query_heads, head_dim = q_TQD.shape
    num_heads, num_keys, _ = k_HSD.shape
    group = num_query_heads // num_heads
    keys_S = torch.arange(num_keys, device=q_TQD.device)
    queries_T1 = keys_S[num_keys - num_tokens :, None]
    is_hidden_TS = keys_S > queries_T1
    if form.window is not None:
        is_hidden_TS |= keys_S <= queries_T1 - form.window

    q_HXD = (
        q_TQD.view(-1, num_heads, group, head_dim)
        .permute(1, 2, 0, 3)
        .reshape(num_heads, -1, head_dim)
    )
    scores_QTS = _scores(q_HXD, k_HSD, form).view(num_query_heads, num_tokens, num_keys)
    scores_QTS = scores_QTS.masked_fill_(is_hidden_TS, float("-inf"))
    sinks_Q1 = None if form.sinks_Q is None else form.sinks_Q[:, None]
    weights_QTS = _weights(scores_QTS, sinks_Q1).to(q_TQD.dtype)
    out_HXD = _sums(weights_QTS.view(num_heads, -1, num_keys), v_HSD, form)
    out_QTD = out_HXD.view(num_query_heads, num_tokens, head_dim)
    return out_QTD.transpose(0, 1)


def _scores(q: Tensor, k: Tensor, form: AttentionForm) -> Tensor:
    """Scaled and capped scores in float32 of queries [..., H, X, D] and keys [..., H, S, D]."""
    scores = (q @ k.transpose(-1, -2)).float() * form.scale
    if form.kv_scales_2H is not None:
        scores = scores * form.kv_scales_2H[0, :, None, None]
    if form.soft_cap is None:
        return scores
    return (scores / form.soft_cap).tanh_() * form.soft_cap


def _sums(weights: Tensor, v: Tensor, form: AttentionForm) -> Tensor:
    """Values [..., H, S, D] weighed by [..., H, X, S]."""
    sums = weights @ v
    if form.kv_scales_2H is None:
        return sums
    return (sums.float() * form.kv_scales_2H[1, :, None, None]).to(sums.dtype)


def _weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax of the last dimension; `sinks`: a logit for each of the others."""
    if sinks is None:
        return scores.softmax(-1)
    sinks = sinks.float().expand(scores.shape[:-1])[..., None]
    return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]


def _blocks(total: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, total, size):
        yield start, min(start + size, total)
