"""Checks of what the kernels of float8 are given, and where their scales are."""

import torch
from torch import Tensor

from raydix.kernels.fp8.form import KERNEL_BLOCKS
from raydix.kernels.weights.scaled_weight import ScaledWeight

_ALIGNMENT_BYTES = 16
"""The size of which a row of weights must be a multiple, as a tensor map demands."""


def scale_strides(weight: ScaledWeight) -> tuple[int, int]:
    """From the scale of one block, or output, to that of the next; and along the inputs."""
    scales = weight.scales_BD
    return scales.stride(-2), scales.stride(-1) if scales.shape[-1] > 1 else 0


def check_weight(x_TC: Tensor, weight: ScaledWeight, *, num_dimensions: int = 2) -> None:
    """Raise ValueError unless these inputs can be multiplied by this weight."""
    matrix, scales = weight.numbers.matrix_OC, weight.scales_BD
    if x_TC.dtype not in (torch.bfloat16, torch.float32) or x_TC.dim() != 2 or x_TC.stride(1) != 1:
        raise ValueError(
            f"Inputs are {x_TC.dtype} {tuple(x_TC.shape)}, strides {x_TC.stride()}; expected "
            "bfloat16 or float32 [T, C], contiguous in C."
        )
    if (
        matrix.dtype != torch.float8_e4m3fn
        or matrix.dim() != num_dimensions
        or not matrix.is_contiguous()
        or matrix.shape[-1] != x_TC.shape[1]
        or matrix.shape[-1] % _ALIGNMENT_BYTES
    ):
        raise ValueError(
            f"Weights are {matrix.dtype} {tuple(matrix.shape)}; expected contiguous float8 of "
            f"{num_dimensions} dimensions with {x_TC.shape[1]} inputs, a multiple of "
            f"{_ALIGNMENT_BYTES}."
        )
    if weight.block not in KERNEL_BLOCKS:
        raise ValueError(
            f"Scales are of blocks of {weight.block}; expected one of {KERNEL_BLOCKS}."
        )
    if scales.dtype != torch.float32 or scales.dim() != num_dimensions:
        raise ValueError(
            f"Scales are {scales.dtype} {tuple(scales.shape)}; expected float32 of "
            f"{num_dimensions} dimensions."
        )
