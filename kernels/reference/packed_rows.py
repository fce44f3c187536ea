"""Plain PyTorch twins of the kernels that pack rows for their way to other ranks, and restore them.

Legend: T tokens, N rows of all ranks, C hidden, D blocks of hidden, B bytes of a packed row.
"""

import torch
from torch import Tensor

from raydix.kernels.fp8.form import BLOCK, packed_bytes, scale_bytes
from raydix.kernels.reference.scaled_linear import round_inputs


def pack_rows(x_TC: Tensor) -> Tensor:
    """Round rows as `round_inputs` does, and put the scales of each before its numbers: [T, B]."""
    numbers_TC, scales_TD = round_inputs(x_TC, BLOCK)
    num_tokens, size = x_TC.shape
    before = scale_bytes(size)
    packed_TB = numbers_TC.new_zeros((num_tokens, packed_bytes(size)), dtype=torch.uint8)
    packed_TB[:, :before] = scales_TD.contiguous().view(torch.uint8)
    packed_TB[:, before : before + size] = numbers_TC.view(torch.uint8)
    return packed_TB


def restore_rows(packed_NB: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return what the numbers of packed rows stand for, [N, C] for a C of `size`.

    Nothing is rounded again if these are bfloat16 or float32: a scale is a power of two.
    """
    before = scale_bytes(size)
    scales_ND = packed_NB[:, :before].contiguous().view(torch.float32)
    numbers_NB = packed_NB[:, before : before + size].contiguous()
    scales_NC = scales_ND.repeat_interleave(BLOCK, dim=1)[:, :size]
    return (numbers_NB.view(torch.float8_e4m3fn).float() * scales_NC).to(dtype)
