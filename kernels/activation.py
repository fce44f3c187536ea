# mypy: disable-error-code="no-untyped-def"
"""SwiGLU's activation.

Legend: T tokens of the step, I intermediate.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def silu_mul(gate_up_TI: Tensor) -> Tensor:
    """SwiGLU's gate: silu of the first half of the last dimension times its second half.

    Rounded where `reference.activation.silu_mul` rounds. bf16 or float32, contiguous in the last
    dimension. Raises ValueError if a shape, dtype or stride differs.
    """
    if gate_up_TI.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Gate and up are {gate_up_TI.dtype}; expected bfloat16 or float32.")
    if gate_up_TI.dim() != 2 or gate_up_TI.shape[1] % 2 or gate_up_TI.stride(1) != 1:
        raise ValueError(
            f"Gate and up are {tuple(gate_up_TI.shape)}, strides {gate_up_TI.stride()}; expected "
            f"[T, 2 x I], contiguous in the last dimension."
        )

    num_tokens, size = gate_up_TI.shape[0], gate_up_TI.shape[1] // 2
    out_TI = torch.empty((num_tokens, size), dtype=gate_up_TI.dtype, device=gate_up_TI.device)
    if num_tokens:
        _silu_mul[(num_tokens, triton.cdiv(size, _BLOCK))](
            gate_up_TI, out_TI, gate_up_TI.stride(0), size, BLOCK=_BLOCK, num_warps=4
        )
    return out_TI


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, stride, size, BLOCK: tl.constexpr):
    """One block of one token; the activation is rounded before the product."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate_ptr = gate_up_ptr + token * stride + column
    gate = tl.load(gate_ptr, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + size, mask=is_column, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out_ptr + token * size + column, (activated * up).to(dtype), mask=is_column)
