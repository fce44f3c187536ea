"""A linear layer of float8 in blocks, for many tokens on Hopper: by the library that torch calls.

Legend: T tokens, C inputs, O outputs, D blocks of inputs.
"""

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.device.gpu import capability
from raydix.kernels.fp8.form import BLOCK, IN_BLOCKS
from raydix.kernels.fp8.rounding import round_inputs
from raydix.kernels.weights.scaled_weight import ScaledWeight

_MIN_TOKENS = 129
_MIN_TILES = 60
"""The least number of tiles of 128 x 128: of fewer, the library leaves multiprocessors idle."""
_ROW_ALIGNMENT = 16
"""The rows, and the outputs, of which it wants a multiple."""
_SCALE_ALIGNMENT = 4
"""The scales, 16 bytes, of which a column has to have a multiple."""
_CAPABILITY = (9, 0)


def fits(x_TC: Tensor, weight: ScaledWeight) -> bool:
    """Does the library know such a product, and is it faster at it than `scaled_product`?"""
    num_tokens, (outputs, inputs) = len(x_TC), weight.numbers.matrix_OC.shape
    return (
        x_TC.dtype == torch.bfloat16
        and num_tokens >= _MIN_TOKENS
        and -(-num_tokens // BLOCK) * -(-outputs // BLOCK) >= _MIN_TILES
        and weight.block == IN_BLOCKS
        and weight.numbers.bias_O is None
        and weight.scales_BD.is_contiguous()
        and outputs % _ROW_ALIGNMENT == 0
        and inputs % (BLOCK * _SCALE_ALIGNMENT) == 0
        and x_TC.device.type == "cuda"
        and capability(x_TC.device) == _CAPABILITY
    )


def multiply(x_TC: Tensor, weight: ScaledWeight) -> Tensor:
    """The product [T, O] in bf16, of inputs and weights that fit."""
    num_tokens = len(x_TC)
    numbers_TC, scales_DT = round_inputs(x_TC, multiple_of=_ROW_ALIGNMENT)
    kinds = functional.ScalingType
    out_TO = functional.scaled_mm(
        numbers_TC,
        weight.numbers.matrix_OC.T,
        scales_DT.T,
        kinds.BlockWise1x128,
        weight.scales_BD.T,
        kinds.BlockWise128x128,
        output_dtype=x_TC.dtype,
    )
    return out_TO[:num_tokens]
