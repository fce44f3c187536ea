# mypy: disable-error-code="no-untyped-def"
"""RMSNorm, with the residual connection before it.

Legend: T tokens of the step, C hidden, S summands.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dense.summands import first_summand, sum_rounded
from raydix.kernels.device.early_launch import early_launch, let_next_come, wait_for_ahead

_WIDE_ROW = 2048
"""The number of elements from which on a row is given eight warps."""


def rms_norm(
    x_TC: Tensor,
    weight_C: Tensor,
    eps: float,
    *,
    residual_TC: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Normalise the last dimension, rounding where `reference.norm.rms_norm` rounds; [T, C].

    With `residual_TC`: it becomes `residual_TC + x_TC` in place, and that sum is normalised. All
    bf16 or all float32, contiguous in C; the weight may be float32 beside bf16. x may be float32
    summands [S, T, C] of what has `dtype`. Raises ValueError if a shape, dtype or stride differs.
    """
    summands = x_TC
    x_TC, num_summands, dtype = first_summand(summands, dtype)
    rows = [x_TC] if residual_TC is None else [x_TC, residual_TC]
    dtypes = [dtype, *(t.dtype for t in rows[1:])]
    if dtype not in (torch.bfloat16, torch.float32) or any(each != dtype for each in dtypes):
        raise ValueError(f"Rows are {dtypes}; expected one of bfloat16, float32.")
    if weight_C.dtype not in (dtype, torch.float32):
        raise ValueError(
            f"The weight is {weight_C.dtype}; expected {dtype}, that of the rows, or float32."
        )
    if x_TC.dim() != 2 or any(t.shape != x_TC.shape or t.stride(1) != 1 for t in rows):
        raise ValueError(
            f"Rows are {[(tuple(t.shape), t.stride()) for t in rows]}; expected one shape [T, C], "
            f"contiguous in C."
        )
    if weight_C.shape != x_TC.shape[1:] or not weight_C.is_contiguous():
        raise ValueError(
            f"The weight is {tuple(weight_C.shape)}; expected contiguous [{x_TC.shape[1]}]."
        )

    num_tokens, size = x_TC.shape
    out_TC = torch.empty((num_tokens, size), dtype=dtype, device=x_TC.device)
    if num_tokens:
        _rms_norm[(num_tokens,)](
            summands,
            residual_TC,
            weight_C,
            out_TC,
            summands.stride(-2),
            0 if residual_TC is None else residual_TC.stride(0),
            eps,
            SIZE=size,
            BLOCK=triton.next_power_of_2(size),
            SUMMANDS=num_summands,
            num_warps=8 if size >= _WIDE_ROW else 4,
            enable_fp_fusion=False,
            **early_launch(x_TC.device),
        )
    return out_TC


@triton.jit
def _rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SUMMANDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One token. Sums and products are in float32; the sum with the residual is rounded first."""
    let_next_come(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < SIZE
    weight = tl.load(weight_ptr + column, mask=is_column, other=0.0)
    dtype = out_ptr.dtype.element_ty
    if residual_ptr is not None:
        # The last norm wrote it; the product since then let the next come when that had ended.
        residual_row_ptr = residual_ptr + token * residual_stride + column
        residual = tl.load(residual_row_ptr, mask=is_column, other=0.0).to(tl.float32)
    wait_for_ahead(EARLY)
    x_row_ptr = x_ptr + token * x_stride + column
    x = sum_rounded(x_row_ptr, tl.num_programs(0).to(tl.int64) * SIZE, is_column, SUMMANDS, dtype)
    if residual_ptr is not None:
        x += residual
        rounded = x.to(dtype)
        tl.store(residual_row_ptr, rounded, mask=is_column)
        x = rounded.to(tl.float32)

    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    out = weight.to(tl.float32) * (x * scale).to(weight.dtype).to(tl.float32)
    tl.store(out_ptr + token * SIZE + column, out.to(dtype), mask=is_column)
