"""Plain PyTorch twins of products with float8 in blocks: what kernels of the native way compute.

Legend: T tokens of the step, C inputs, O outputs, D blocks of inputs; K experts per token.
"""

import torch
from torch import Tensor

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.fp8.form import (
    LARGEST_EXPONENT,
    MANTISSA_BITS,
    ROUND_UP,
    SMALLEST_MAGNITUDE,
)
from raydix.kernels.reference.activation import glu
from raydix.kernels.weights.scaled_weight import ScaledWeight

_DTYPE = torch.float8_e4m3fn


def round_inputs(x_TC: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Round each `size` inputs of a token to float8, by a scale of their own.

    Returns the float8 numbers [T, C] and the float32 scales [T, D], by which they are multiplied:
    the least powers of two by which no number passes 448. The last inputs may be fewer.
    """
    scales = []
    numbers = torch.empty_like(x_TC, dtype=_DTYPE)
    for start in range(0, x_TC.shape[1], size):
        group = x_TC[:, start : start + size].float()
        largest_T1 = group.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST_MAGNITUDE)
        bits_T1 = largest_T1.view(torch.int32) + ROUND_UP
        exponent_T1 = (bits_T1 >> MANTISSA_BITS) - LARGEST_EXPONENT
        scale_T1 = (exponent_T1 << MANTISSA_BITS).view(torch.float32)
        numbers[:, start : start + size] = (group / scale_T1).to(_DTYPE)
        scales.append(scale_T1)
    return numbers, torch.cat(scales, dim=1)


def scaled_linear(x_TC: Tensor, weight: ScaledWeight) -> Tensor:
    """Multiply tokens by a matrix of blocks, and add its bias; [T, O] in the dtype of `x_TC`.

    Inputs are rounded as `round_inputs` says, by blocks of the matrix. Products of float8 are
    added up in float32 within a block of inputs; the sum is multiplied by the scale of the inputs,
    then by that of the matrix, and added to those before it, block after block, in float32.
    """
    matrix_OC, bias_O = weight.numbers.matrix_OC, weight.numbers.bias_O
    size, num_outputs = weight.input_group, len(matrix_OC)
    numbers_TC, scales_TD = round_inputs(x_TC, size)
    scales_OD = weight.scales_BD.repeat_interleave(weight.block[0], dim=0)[:num_outputs]

    out_TO = torch.zeros(len(x_TC), num_outputs, device=x_TC.device)
    for block in range(scales_TD.shape[1]):
        inputs = slice(block * size, (block + 1) * size)
        sums_TO = numbers_TC[:, inputs].float() @ matrix_OC[:, inputs].float().T
        # One scale may be that of all inputs.
        scales_O = scales_OD[:, block if scales_OD.shape[1] > 1 else 0]
        out_TO += sums_TO * scales_TD[:, block, None] * scales_O
    if bias_O is not None:
        out_TO += bias_O.float()
    return out_TO.to(x_TC.dtype)


def scaled_experts(
    x_TC: Tensor,
    gate_up: ScaledWeight,
    down: ScaledWeight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C]; an id of -1 chooses none.

    gate_up has gate rows, then up rows, in each seat. What an expert's hidden layer says is rounded
    as its inputs are. The host waits for the device.
    """
    by_choice_TKC = x_TC.new_zeros(*expert_ids_TK.shape, x_TC.shape[1])
    for seat in range(len(gate_up.numbers.matrix_OC)):
        tokens_X, choices_X = (expert_ids_TK == seat).nonzero(as_tuple=True)
        if len(tokens_X):
            hidden_XI = glu(scaled_linear(x_TC[tokens_X], gate_up.seat(seat)), form)
            weights_X1 = weights_TK[tokens_X, choices_X, None].to(x_TC.dtype)
            out_XC = scaled_linear(hidden_XI, down.seat(seat))
            by_choice_TKC[tokens_X, choices_X] = out_XC * weights_X1
    return by_choice_TKC.sum(1)
