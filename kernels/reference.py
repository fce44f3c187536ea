"""Plain PyTorch twins of all kernels: what each must compute, on any device.

Legend: T tokens of the step, R rows (requests), B rows of a batch, C hidden, I intermediate, H KV
heads, G query heads per KV head, Q query heads, D head dim, P pages, L layers of the KV group, S
slots per page, N pages of a block table, E experts, K experts per token, V vocabulary. float32
stays IEEE float32: TF32 must be off, as it is by default.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.page_codec import (
    NAN_BITS,
    SCALE_LOW_BITS,
    SCALES_BYTES,
    SMALLEST_MAGNITUDE,
    Codec,
)

QUERY_BLOCK = 256
"""Queries of one row that are scored at a time: bounds the score matrix to QUERY_BLOCK x context.
"""
_PAYLOAD_DTYPES = {Codec.INT8: torch.int8, Codec.FP8: torch.float8_e4m3fn}
DENSE_EXPERT_TOKENS = 64
"""Up to this many tokens every expert runs on every token: no count of tokens per expert has to
reach the host.
"""


def rms_norm(
    x_TC: Tensor, weight_C: Tensor, eps: float, *, residual_TC: Tensor | None = None
) -> Tensor:
    """Scale the last dimension to unit root mean square, in float32, then by `weight_C`.

    With `residual_TC`: it becomes `residual_TC + x_TC` in place, and that sum is normalised.
    """
    if residual_TC is not None:
        x_TC = residual_TC.add_(x_TC)
    x32_TC = x_TC.float()
    variance_T1 = x32_TC.pow(2).mean(-1, keepdim=True)
    return weight_C * (x32_TC * torch.rsqrt(variance_T1 + eps)).to(x_TC.dtype)


def silu_mul(gate_up_TI: Tensor) -> Tensor:
    """SwiGLU: silu of the first half of the last dimension times its second half."""
    gate_TI, up_TI = gate_up_TI.chunk(2, dim=-1)
    return functional.silu(gate_TI) * up_TI


def apply_rope(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate pairs (i, i + D/2) of every head; `cos_TD` and `sin_TD` repeat their first half."""
    first_THD, second_THD = x_THD.chunk(2, dim=-1)
    rotated_THD = torch.cat((-second_THD, first_THD), dim=-1)
    return x_THD * cos_TD[:, None] + rotated_THD * sin_TD[:, None]


def write_kv(
    k_THD: Tensor, v_THD: Tensor, pool_PLH2SD: Tensor, layer: int, slot_mapping_T: Tensor
) -> None:
    """Scatter this step's keys and values of one layer into the paged cache, in place.

    slot_mapping_T: int64, page * S + offset. -1 skips a token: it goes to the padding page, which
    nobody reads.
    """
    page_size = pool_PLH2SD.shape[4]
    slots_T = slot_mapping_T.clamp_min(0)
    layer_PH2SD = pool_PLH2SD[:, layer]
    kv_TH2D = torch.stack((k_THD, v_THD), dim=2)
    layer_PH2SD[slots_T // page_size, :, :, slots_T % page_size] = kv_TH2D


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RopeTables:
    """Cos and sin [X, D] in the model's dtype; the second half of D repeats the first."""

    cos_XD: Tensor
    sin_XD: Tensor
    positions_T: Tensor | None
    """int32 or int64, each token's row in the tables; None: X is T and the rows are the tokens'."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QkNorm:
    """RMSNorm over each head of queries and keys."""

    q_weight_D: Tensor
    k_weight_D: Tensor
    eps: float


def rotate_and_write_kv(
    qkv_TX: Tensor,
    rope: RopeTables,
    norm: QkNorm | None,
    pool_PLH2SD: Tensor,
    layer: int,
    slot_mapping_T: Tensor,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values into the cache. Returns the
    queries, [T, Q, D].

    qkv_TX: [T, (Q + 2 x H) x D], queries first, then keys, then values. slot_mapping_T: as in
    `write_kv`.
    """
    num_heads, head_dim = pool_PLH2SD.shape[2], pool_PLH2SD.shape[5]
    qkv_TXD = qkv_TX.view(qkv_TX.shape[0], -1, head_dim)
    q_TQD, k_THD, v_THD = qkv_TXD.split(
        (qkv_TXD.shape[1] - 2 * num_heads, num_heads, num_heads), dim=1
    )
    cos_TD, sin_TD = rope.cos_XD, rope.sin_XD
    if rope.positions_T is not None:
        cos_TD, sin_TD = cos_TD[rope.positions_T], sin_TD[rope.positions_T]
    if norm is not None:
        q_TQD, k_THD = (
            rms_norm(q_TQD, norm.q_weight_D, norm.eps),
            rms_norm(k_THD, norm.k_weight_D, norm.eps),
        )
    write_kv(apply_rope(k_THD, cos_TD, sin_TD), v_THD, pool_PLH2SD, layer, slot_mapping_T)
    return apply_rope(q_TQD, cos_TD, sin_TD)


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
    # Padding meets a weight of zero, which does not silence a NaN that a page's last owner may have
    # left. So pages past a row's end are read as its first one, and the rest of its last page is
    # cleared.
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


def topk_gating(
    router_logits_TE: Tensor, num_experts_per_token: int, *, renormalise: bool
) -> tuple[Tensor, Tensor]:
    """Choose each token's most likely experts.

    Returns (weights_TK float32, expert_ids_TK int64): softmax over all experts in float32, then the
    K largest, divided by their sum if `renormalise`.
    """
    weights_TK, expert_ids_TK = (
        router_logits_TE.float().softmax(-1).topk(num_experts_per_token, dim=-1)
    )
    if renormalise:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK, expert_ids_TK


def fused_experts(
    x_TC: Tensor, gate_up_EIC: Tensor, down_ECI: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor
) -> Tensor:
    """Weighted sum of the chosen experts' SwiGLU outputs, [T, C].

    gate_up_EIC holds gate rows, then up rows. Past DENSE_EXPERT_TOKENS tokens the host waits for
    the device.
    """
    if x_TC.shape[0] <= DENSE_EXPERT_TOKENS:
        return _dense_experts(x_TC, gate_up_EIC, down_ECI, weights_TK, expert_ids_TK)
    num_experts, experts_per_token = gate_up_EIC.shape[0], expert_ids_TK.shape[1]
    order_X = expert_ids_TK.flatten().argsort(stable=True)
    tokens_X = order_X // experts_per_token
    counts = torch.bincount(expert_ids_TK.flatten(), minlength=num_experts).tolist()
    sorted_XC = x_TC[tokens_X]
    outputs = [
        functional.linear(
            silu_mul(functional.linear(part_XC, gate_up_EIC[expert])), down_ECI[expert]
        )
        for expert, part_XC in enumerate(sorted_XC.split(counts))
        if counts[expert]
    ]
    weighted_XC = torch.cat(outputs) * weights_TK.flatten()[order_X, None].to(x_TC.dtype)
    by_choice_TKC = torch.empty_like(weighted_XC).index_copy_(0, order_X, weighted_XC)
    return by_choice_TKC.view(-1, experts_per_token, x_TC.shape[1]).sum(1)


def _dense_experts(
    x_TC: Tensor, gate_up_EIC: Tensor, down_ECI: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor
) -> Tensor:
    num_experts, num_tokens = gate_up_EIC.shape[0], x_TC.shape[0]
    gate_up_ETI = x_TC.expand(num_experts, -1, -1) @ gate_up_EIC.transpose(1, 2)
    out_TEC = (silu_mul(gate_up_ETI) @ down_ECI.transpose(1, 2)).transpose(0, 1)
    weights_TE = weights_TK.new_zeros(num_tokens, num_experts).scatter_(
        1, expert_ids_TK, weights_TK
    )
    return (weights_TE.to(x_TC.dtype)[:, None] @ out_TEC)[:, 0]


def encode_pages(kv_XH2SD: Tensor, codec: Codec) -> Tensor:
    """Keys and values of X layers of pages as `page_codec` describes, uint8 [X, H *
    encoded_head_bytes].

    A payload is `x / scale`, rounded half to even; the scale of a head's keys or values is their
    largest magnitude over `codec.largest`, rounded up to 17 bits: products with a payload are then
    exact, so that what `decode_pages` returns is encoded to the same bytes again. Below
    SMALLEST_MAGNITUDE all of them become zero. If one is infinite or NaN, the scale is NaN: all of
    them are restored as NaN, none as a number that was never there.
    """
    x_XH2E = kv_XH2SD.flatten(-2).float()
    # As integers, magnitudes sort like their values, infinity and NaN behind all numbers.
    largest_bits_XH2 = (x_XH2E.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    largest_XH2 = largest_bits_XH2.view(torch.float32)
    # By a tensor: CUDA would multiply by the reciprocal of a number.
    scales_XH2 = largest_XH2 / torch.full_like(largest_XH2, codec.largest)
    scale_bits_XH2 = scales_XH2.view(torch.int32) + SCALE_LOW_BITS & ~SCALE_LOW_BITS
    scale_bits_XH2 = scale_bits_XH2.masked_fill(largest_XH2 < SMALLEST_MAGNITUDE, 0)
    is_number_XH2 = largest_XH2 < torch.inf
    factors_XH2 = (1 / scale_bits_XH2.view(torch.float32)).masked_fill(
        (scale_bits_XH2 == 0) | ~is_number_XH2, 0.0
    )
    scaled_XH2E = x_XH2E.masked_fill(~is_number_XH2[..., None], 0.0) * factors_XH2[..., None]
    if codec is Codec.INT8:
        scaled_XH2E = scaled_XH2E.round()
    payload_XHB = scaled_XH2E.to(_PAYLOAD_DTYPES[codec]).view(torch.uint8).flatten(-2)
    scales_XHB = scale_bits_XH2.masked_fill(~is_number_XH2, NAN_BITS).view(torch.uint8)
    return torch.cat(
        (payload_XHB, functional.pad(scales_XHB, (0, SCALES_BYTES - scales_XHB.shape[-1]))), -1
    ).flatten(1)


def decode_pages(
    encoded_XB: Tensor, codec: Codec, shape_H2SD: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Restore what `encode_pages` returned, [X, H, 2, S, D]: payload times scale in float32,
    rounded to `dtype`.
    """
    num_heads, _, page_size, head_dim = shape_H2SD
    encoded_XHB = encoded_XB.unflatten(1, (num_heads, -1))
    payload_XHB, scales_XHB = encoded_XHB.split((2 * page_size * head_dim, SCALES_BYTES), dim=-1)
    payload_XH2E = payload_XHB.view(_PAYLOAD_DTYPES[codec]).float().unflatten(-1, (2, -1))
    scales_XH2 = scales_XHB[..., :8].contiguous().view(torch.float32)
    return (payload_XH2E * scales_XH2[..., None]).to(dtype).unflatten(-1, (page_size, head_dim))
