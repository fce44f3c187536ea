# mypy: disable-error-code="no-untyped-def"
"""Bring the QKV projection to attention: norm, rotation, and the write into the paged cache.

Legend: T tokens of the step, Q query heads, H KV heads, D head dim, R dims of a head that are
rotated, X positions or tokens, P pages, L layers of the KV group, S tokens per page. Summands are
[M, T, X].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dense.summands import first_summand, sum_rounded
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead
from raydix.kernels.kv_cache.fp8 import FP8, LARGEST, check_kv_scales
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables

_ONE_WARP_ELEMENTS = 256
_LARGEST: tl.constexpr = tl.constexpr(LARGEST)


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
    """Return queries, normed and rotated, [T, Q, D]; write keys, likewise, and values to the cache.

    qkv_TX: [T, (Q + 2 x H) x D], queries first, then keys, then values; or float32 summands of it,
    each of that shape. cells_T: int32 or int64, page * S + offset; -1 writes nothing. All
    else bf16 or all float32, but for the weights of the norm, which may be float32 beside bf16, and
    for a pool of FP8, which `kv_scales_2H` is for; rounds where the twins `rms_norm`, `apply_rope`
    and `write_kv` round. Raises ValueError if a shape, dtype or stride differs.
    """
    summands = qkv_TX
    qkv_TX, num_summands, dtype = first_summand(summands, rope.cos_XR.dtype)
    check_kv_scales(kv_scales_2H, pool_PLH2SD.shape[2])
    num_query_heads = _check_inputs(qkv_TX, dtype, pool_PLH2SD, layer, cells_T)
    _check_tables(len(qkv_TX), dtype, pool_PLH2SD.shape[5], rope, norm)

    _, _, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    num_tokens, group = qkv_TX.shape[0], num_query_heads // num_heads
    q_TQD = torch.empty((num_tokens, num_query_heads, head_dim), dtype=dtype, device=qkv_TX.device)
    if num_tokens == 0:
        return q_TQD

    block_group = triton.next_power_of_2(group)
    block_half = triton.next_power_of_2(head_dim // 2)
    _rotate_and_write[(num_tokens, num_heads)](
        summands,
        q_TQD,
        rope.cos_XR,
        rope.sin_XR,
        rope.positions_T,
        None if norm is None else norm.q_weight_D,
        None if norm is None else norm.k_weight_D,
        pool_PLH2SD,
        kv_scales_2H,
        cells_T,
        qkv_TX.stride(0),
        pool_PLH2SD.stride(0),
        layer * pool_PLH2SD.stride(1),
        0.0 if norm is None else norm.eps,
        QUERY_HEADS=num_query_heads,
        KV_HEADS=num_heads,
        GROUP=group,
        BLOCK_GROUP=block_group,
        PAGE=page_size,
        DIM=head_dim,
        ROTARY=rope.cos_XR.shape[1],
        BLOCK_HALF=block_half,
        SUMMANDS=num_summands,
        num_warps=1 if block_group * block_half * 2 <= _ONE_WARP_ELEMENTS else 4,
        enable_fp_fusion=False,
        **early_launch(qkv_TX.device),
    )
    return q_TQD


def _check_inputs(
    qkv_TX: Tensor, dtype: torch.dtype, pool_PLH2SD: Tensor, layer: int, cells_T: Tensor
) -> int:
    """Return the number of query heads."""
    if dtype not in (torch.bfloat16, torch.float32) or pool_PLH2SD.dtype not in (dtype, FP8):
        raise ValueError(
            f"QKV is {dtype}, the pool {pool_PLH2SD.dtype}; expected one of bfloat16, float32, or "
            f"a pool of {FP8}."
        )
    if pool_PLH2SD.dim() != 6 or pool_PLH2SD.shape[3] != 2 or not pool_PLH2SD.is_contiguous():
        raise ValueError(
            f"The pool is {tuple(pool_PLH2SD.shape)}; expected contiguous [P, L, H, 2, S, D]."
        )

    _, num_layers, num_heads, _, _, head_dim = pool_PLH2SD.shape
    if not 0 <= layer < num_layers:
        raise ValueError(f"Layer {layer} is not among the pool's {num_layers}.")
    if qkv_TX.dim() != 2 or qkv_TX.stride(1) != 1 or qkv_TX.shape[1] % head_dim:
        raise ValueError(
            f"QKV is {tuple(qkv_TX.shape)}; expected [T, heads x {head_dim}], contiguous in a "
            f"token."
        )
    num_query_heads = qkv_TX.shape[1] // head_dim - 2 * num_heads
    if num_query_heads < num_heads or num_query_heads % num_heads or head_dim % 2:
        raise ValueError(
            f"QKV {tuple(qkv_TX.shape)} does not match {num_heads} KV heads of {head_dim}."
        )

    if cells_T.shape != qkv_TX.shape[:1] or cells_T.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise ValueError(
            f"The cells are {cells_T.dtype} {tuple(cells_T.shape)}; expected ints [T]."
        )
    if not cells_T.is_contiguous():
        raise ValueError(f"The cells have strides {cells_T.stride()}; expected 1.")
    return num_query_heads


def _check_tables(
    num_tokens: int, dtype: torch.dtype, head_dim: int, rope: RopeTables, norm: QkNorm | None
) -> None:
    tables = [rope.cos_XR, rope.sin_XR]
    if any(t.dtype != dtype or t.dim() != 2 or not t.is_contiguous() for t in tables):
        raise ValueError(
            f"Cos and sin are {[(t.dtype, tuple(t.shape)) for t in tables]}; expected contiguous "
            f"{dtype} [X, R]."
        )
    num_rotated, of_sines = rope.cos_XR.shape[1], rope.sin_XR.shape[1]
    if num_rotated != of_sines or num_rotated % 2 or not 0 < num_rotated <= head_dim:
        raise ValueError(
            f"Cos and sin rotate {num_rotated} and {of_sines} dims; expected the same even number "
            f"of at most {head_dim}."
        )
    if rope.positions_T is None:
        if rope.cos_XR.shape[0] != num_tokens or rope.sin_XR.shape[0] != num_tokens:
            raise ValueError(
                f"Cos and sin have {rope.cos_XR.shape[0]} rows; expected one for each of the "
                f"tokens."
            )
    elif rope.positions_T.shape != (num_tokens,) or rope.positions_T.dtype not in (
        torch.int32,
        torch.int64,
    ):
        raise ValueError(
            f"Positions are {rope.positions_T.dtype} {tuple(rope.positions_T.shape)}; expected "
            f"ints [T]."
        )

    weights = [] if norm is None else [norm.q_weight_D, norm.k_weight_D]
    if any(
        w.dtype not in (dtype, torch.float32) or w.shape != (head_dim,) or not w.is_contiguous()
        for w in weights
    ):
        raise ValueError(
            f"Norm weights are {[(w.dtype, tuple(w.shape)) for w in weights]}; expected contiguous "
            f"{dtype} or float32 [{head_dim}]."
        )


@triton.jit
def _rotate_and_write(
    qkv_ptr,
    q_out_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    q_weight_ptr,
    k_weight_ptr,
    pool_ptr,
    scales_ptr,
    cells_ptr,
    qkv_stride,
    page_stride,
    layer_offset,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    SUMMANDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One token's KV head and its group of query heads, each head as two halves of D.

    Dims that are rotated together have the same place in both; those that are not come behind.
    """
    let_next_come(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, BLOCK_HALF)
    is_pair = pair < DIM // 2
    dims = _dims_of_pairs(pair, DIM, ROTARY)
    first_dim, second_dim = dims
    table_row = token
    if positions_ptr is not None:
        table_row = tl.load(positions_ptr + token).to(tl.int64)
    # What is not rotated is turned by an angle of zero.
    is_turned = pair < ROTARY // 2
    table_index = table_row * ROTARY + pair
    cos = tl.load(cos_ptr + table_index, mask=is_turned, other=1.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + table_index, mask=is_turned, other=0.0).to(tl.float32)[None, :]

    q_weight = None if q_weight_ptr is None else _load_weight(q_weight_ptr, dims, is_pair)
    k_weight = None if k_weight_ptr is None else _load_weight(k_weight_ptr, dims, is_pair)
    cell = tl.load(cells_ptr + token).to(tl.int64)
    wait_for_ahead(EARLY)
    dtype = q_out_ptr.dtype.element_ty
    row_ptr = qkv_ptr + token * qkv_stride
    apart = tl.num_programs(0).to(tl.int64) * qkv_stride
    member = tl.arange(0, BLOCK_GROUP)
    q_head = (head * GROUP + member[:, None]) * DIM
    q_first, q_second = q_head + first_dim[None, :], q_head + second_dim[None, :]
    is_q = (member < GROUP)[:, None] & is_pair[None, :]
    # One row, so that keys take the same path as queries.
    one = tl.arange(0, 1)[:, None]
    is_k = (one == 0) & is_pair[None, :] & (cell >= 0)
    kv_first, kv_second = one + first_dim[None, :], one + second_dim[None, :]
    k_ptr = row_ptr + (QUERY_HEADS + head) * DIM
    v_ptr = k_ptr + KV_HEADS * DIM
    # All that is read is read before anything is written, so that it is waited for once.
    first = sum_rounded(row_ptr + q_first, apart, is_q, SUMMANDS, dtype)
    second = sum_rounded(row_ptr + q_second, apart, is_q, SUMMANDS, dtype)
    k_first = sum_rounded(k_ptr + kv_first, apart, is_k, SUMMANDS, dtype)
    k_second = sum_rounded(k_ptr + kv_second, apart, is_k, SUMMANDS, dtype)
    v_first = sum_rounded(v_ptr + kv_first, apart, is_k, SUMMANDS, dtype)
    v_second = sum_rounded(v_ptr + kv_second, apart, is_k, SUMMANDS, dtype)

    first, second = _norm_and_rotate(first, second, q_weight, cos, sin, eps, dtype, DIM)
    k_first, k_second = _norm_and_rotate(k_first, k_second, k_weight, cos, sin, eps, dtype, DIM)
    q_ptr = q_out_ptr + token * (QUERY_HEADS * DIM)
    tl.store(q_ptr + q_first, first, mask=is_q)
    tl.store(q_ptr + q_second, second, mask=is_q)

    stored = pool_ptr.dtype.element_ty
    cache_ptr = pool_ptr + cell // PAGE * page_stride + layer_offset
    cache_ptr += (head * 2 * PAGE + cell % PAGE) * DIM
    k_scale_ptr = None if scales_ptr is None else scales_ptr + head
    tl.store(cache_ptr + kv_first, _as_stored(k_first, k_scale_ptr, stored), mask=is_k)
    tl.store(cache_ptr + kv_second, _as_stored(k_second, k_scale_ptr, stored), mask=is_k)
    cache_ptr += PAGE * DIM
    v_scale_ptr = None if scales_ptr is None else k_scale_ptr + KV_HEADS
    v_first, v_second = v_first.to(dtype), v_second.to(dtype)
    tl.store(cache_ptr + kv_first, _as_stored(v_first, v_scale_ptr, stored), mask=is_k)
    tl.store(cache_ptr + kv_second, _as_stored(v_second, v_scale_ptr, stored), mask=is_k)


@triton.jit
def _as_stored(x, scale_ptr, stored: tl.constexpr):
    """What is stored of `x`: itself, or in FP8 what the twin `to_fp8` says."""
    if stored == tl.float8e4nv:
        x = x.to(tl.float32)
        if scale_ptr is not None:
            x = tl.div_rn(x, tl.zeros_like(x) + tl.load(scale_ptr))
        x = tl.clamp(x, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(stored)


@triton.jit
def _dims_of_pairs(pair, DIM: tl.constexpr, ROTARY: tl.constexpr):
    """Both dims of each pair: ROTARY // 2 apart, and behind the first ROTARY dims the others."""
    first, second = pair, pair + DIM // 2
    if ROTARY < DIM:
        is_turned = pair < ROTARY // 2
        first = tl.where(is_turned, pair, pair + ROTARY // 2)
        second = tl.where(is_turned, first + ROTARY // 2, second)
    return first, second


@triton.jit
def _load_weight(weight_ptr, dims, is_pair):
    """Load a norm's weight for one head, as it is divided."""
    first_dim, second_dim = dims
    first = tl.load(weight_ptr + first_dim, mask=is_pair, other=0.0)[None, :]
    return first, tl.load(weight_ptr + second_dim, mask=is_pair, other=0.0)[None, :]


@triton.jit
def _norm_and_rotate(first, second, weight, cos, sin, eps, dtype: tl.constexpr, DIM: tl.constexpr):
    """Norm and rotate both halves of heads, rounded to `dtype` at every step as in the twins."""
    if weight is not None:
        first_weight, second_weight = weight
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / DIM + eps)[
            :, None
        ]
        first = _weigh(first * scale, first_weight).to(dtype).to(tl.float32)
        second = _weigh(second * scale, second_weight).to(dtype).to(tl.float32)

    first_cos, second_cos = (first * cos).to(dtype), (second * cos).to(dtype)
    first_sin, second_sin = (first * sin).to(dtype), (second * sin).to(dtype)
    rotated_first = (first_cos.to(tl.float32) - second_sin.to(tl.float32)).to(dtype)
    rotated_second = (second_cos.to(tl.float32) + first_sin.to(tl.float32)).to(dtype)
    return rotated_first, rotated_second


@triton.jit
def _weigh(x, weight):
    return weight.to(tl.float32) * x.to(weight.dtype).to(tl.float32)
