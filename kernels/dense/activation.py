# mypy: disable-error-code="no-untyped-def"
"""The activation of a gated feed-forward.

Legend: T tokens of the step, I intermediate, S summands.
"""

from typing import assert_never

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dense.glu_form import ClampedGlu, GeluTanhGlu, GluForm, SiluGlu
from raydix.kernels.dense.summands import first_summand, sum_rounded
from raydix.kernels.device.early_launch import early_launch, wait_for_inputs

_BLOCK = 1024
_SILU = tl.constexpr(0)
_GELU_TANH = tl.constexpr(1)
_CLAMPED = tl.constexpr(2)


def glu(gate_up_TI: Tensor, form: GluForm, *, dtype: torch.dtype | None = None) -> Tensor:
    """The hidden layer of a feed-forward, from gate and up in the halves of the last dimension.

    Rounded where `reference.activation.glu` rounds, but that a clamped one rounds once. bf16 or
    float32, contiguous in the last dimension; or float32 summands [S, T, 2 x I] of a product in
    `dtype`. Raises ValueError if a shape, dtype or stride differs.
    """
    summands = gate_up_TI
    gate_up_TI, num_summands, dtype = first_summand(summands, dtype)
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Gate and up are {dtype}; expected bfloat16 or float32.")
    if gate_up_TI.dim() != 2 or gate_up_TI.shape[1] % 2 or gate_up_TI.stride(1) != 1:
        raise ValueError(
            f"Gate and up are {tuple(gate_up_TI.shape)}, strides {gate_up_TI.stride()}; expected "
            f"[T, 2 x I], contiguous in the last dimension."
        )

    num_tokens, size = gate_up_TI.shape[0], gate_up_TI.shape[1] // 2
    out_TI = gate_up_TI.new_empty((num_tokens, size), dtype=dtype)
    kind, slope, limit = glu_constants(form)
    if num_tokens:
        _glu[(num_tokens, triton.cdiv(size, _BLOCK))](
            summands,
            out_TI,
            gate_up_TI.stride(0),
            size,
            KIND=kind,
            SLOPE=slope,
            LIMIT=limit,
            SUMMANDS=num_summands,
            BLOCK=_BLOCK,
            num_warps=4,
            **early_launch(gate_up_TI.device),
        )
    return out_TI


def glu_constants(form: GluForm) -> tuple[int, float, float]:
    """What `activate` takes: its kind, slope and limit."""
    match form:
        case SiluGlu():
            return _SILU.value, 1.0, 0.0
        case GeluTanhGlu():
            return _GELU_TANH.value, 1.0, 0.0
        case ClampedGlu():
            return _CLAMPED.value, form.slope, form.limit
        case _:
            assert_never(form)


@triton.jit
def _glu(
    gate_up_ptr,
    out_ptr,
    stride,
    size,
    KIND: tl.constexpr,
    SLOPE: tl.constexpr,
    LIMIT: tl.constexpr,
    SUMMANDS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One block of one token; the activation is rounded before the product."""
    wait_for_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate_ptr = gate_up_ptr + token * stride + column
    dtype = out_ptr.dtype.element_ty
    apart = tl.num_programs(0).to(tl.int64) * stride
    gate = sum_rounded(gate_ptr, apart, is_column, SUMMANDS, dtype)
    up = sum_rounded(gate_ptr + size, apart, is_column, SUMMANDS, dtype)
    if KIND == _CLAMPED:
        out = activate(gate, KIND, SLOPE, LIMIT) * offset_up(up, KIND, LIMIT)
    else:
        out = activate(gate, KIND, SLOPE, LIMIT).to(dtype).to(tl.float32) * up
    tl.store(out_ptr + token * size + column, out.to(dtype), mask=is_column)


@triton.jit
def activate(gate, KIND: tl.constexpr, SLOPE: tl.constexpr, LIMIT: tl.constexpr):
    """The activated gate, in float32."""
    if KIND == _GELU_TANH:
        # tanh(x) is 2 * sigmoid(2 * x) - 1; the factor is sqrt(2 / pi).
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate / (1.0 + tl.exp(-2.0 * inner))
    if KIND == _CLAMPED:
        gate = tl.minimum(gate, LIMIT)
    return gate / (1.0 + tl.exp(-SLOPE * gate))


@triton.jit
def offset_up(up, KIND: tl.constexpr, LIMIT: tl.constexpr):
    """What the activated gate is multiplied by, in float32."""
    if KIND == _CLAMPED:
        return tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
    return up
