"""Plain PyTorch twins of what happens to queries, keys and values before attention.

Legend: T tokens of the step, X heads of queries, keys and values x D, Q query heads, H KV heads, D
head dim, R dims of a head that are rotated, P pages, L layers of the KV group, S tokens per page.
"""

import torch
from torch import Tensor

from raydix.kernels.kv_cache.fp8 import FP8, LARGEST
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.reference.norm import rms_norm


def apply_rope(x_THD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate pairs (i, i + R/2) of every head; `cos_TR` and `sin_TR` repeat their first half."""
    num_rotated = cos_TR.shape[-1]
    x_THR = x_THD[..., :num_rotated]
    first_THX, second_THX = x_THR.chunk(2, dim=-1)
    turned_THR = torch.cat((-second_THX, first_THX), dim=-1)
    rotated_THR = x_THR * cos_TR[:, None] + turned_THR * sin_TR[:, None]
    if num_rotated == x_THD.shape[-1]:
        return rotated_THR
    return torch.cat((rotated_THR, x_THD[..., num_rotated:]), dim=-1)


def write_kv(
    k_THD: Tensor,
    v_THD: Tensor,
    pool_PLH2SD: Tensor,
    layer: int,
    cells_T: Tensor,
    *,
    kv_scales_2H: Tensor | None = None,
) -> None:
    """Scatter this step's keys and values of one layer into the paged cache, in place.

    cells_T: int64, page * S + offset. -1 skips a token: it goes to the padding page, which
    nobody reads. kv_scales_2H: float32, what keys and values are divided by if the pool is of FP8;
    None: by one.
    """
    page_size = pool_PLH2SD.shape[4]
    cells_T = cells_T.clamp_min(0)
    layer_PH2SD = pool_PLH2SD[:, layer]
    kv_TH2D = torch.stack((k_THD, v_THD), dim=2)
    if pool_PLH2SD.dtype == FP8:
        kv_TH2D = to_fp8(kv_TH2D, kv_scales_2H)
    layer_PH2SD[cells_T // page_size, :, :, cells_T % page_size] = kv_TH2D


def to_fp8(kv_TH2D: Tensor, kv_scales_2H: Tensor | None) -> Tensor:
    """Keys and values over their scales, rounded half to even; those out of range are the largest.

    NaN stays NaN.
    """
    scaled_TH2D = kv_TH2D.float()
    if kv_scales_2H is not None:
        scaled_TH2D = scaled_TH2D / kv_scales_2H.T[:, :, None]
    return scaled_TH2D.clamp(-LARGEST, LARGEST).to(FP8)


def rotate_and_write_kv(
    qkv_TX: Tensor,
    rope: RopeTables,
    norm: QkNorm | None,
    pool_PLH2SD: Tensor,
    layer: int,
    cells_T: Tensor,
    *,
    kv_scales_2H: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, cache keys and values, return the queries [T, Q, D].

    qkv_TX: [T, (Q + 2 x H) x D], queries first, then keys, then values. cells_T and
    kv_scales_2H: as in `write_kv`.
    """
    num_heads, head_dim = pool_PLH2SD.shape[2], pool_PLH2SD.shape[5]
    qkv_TXD = qkv_TX.view(qkv_TX.shape[0], -1, head_dim)
    q_TQD, k_THD, v_THD = qkv_TXD.split(
        (qkv_TXD.shape[1] - 2 * num_heads, num_heads, num_heads), dim=1
    )

    cos_TR, sin_TR = rope.of_tokens()
    if norm is not None:
        q_TQD, k_THD = (
            rms_norm(q_TQD, norm.q_weight_D, norm.eps),
            rms_norm(k_THD, norm.k_weight_D, norm.eps),
        )
    k_THD = apply_rope(k_THD, cos_TR, sin_TR)
    write_kv(k_THD, v_THD, pool_PLH2SD, layer, cells_T, kv_scales_2H=kv_scales_2H)
    return apply_rope(q_TQD, cos_TR, sin_TR)
