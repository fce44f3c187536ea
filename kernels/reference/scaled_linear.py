"""Plain PyTorch twins of products with float8 in blocks: what kernels of the native way compute.

Legend: T tokens of the step, C inputs, O outputs, D blocks of inputs; K experts per token.
"""

import torch
from torch import Tensor

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.reference.activation import glu
from raydix.kernels.weights.scaled_weight import ScaledWeight

_DTYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(_DTYPE).max
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""The scale of inputs that are all zero, or so small that a scale of theirs would be none."""


def quantise_inputs(x_TC: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Round each `size` inputs of a token to float8, by a scale of their own.

    Returns the float8 numbers [T, C] and the float32 scales [T, D], by which they are multiplied:
    the largest magnitude becomes that of float8, 448. The last inputs may be fewer.
    """
    scales = []
    numbers = torch.empty_like(x_TC, dtype=_DTYPE)
    for start in range(0, x_TC.shape[1], size):
        group = x_TC[:, start : start + size].float()
        largest_T1 = group.abs().amax(dim=1, keepdim=True)
        scale_T1 = (largest_T1 / _LARGEST).clamp(min=_SMALLEST_SCALE)
        # A quotient may pass the end of the range by rounding, and float8 has no infinity.
        numbers[:, start : start + size] = (group / scale_T1).clamp(-_LARGEST, _LARGEST).to(_DTYPE)
        scales.append(scale_T1)
    return numbers, torch.cat(scales, dim=1)


def scaled_linear(x_TC: Tensor, weight: ScaledWeight) -> Tensor:
    """Multiply tokens by a matrix of blocks, and add its bias; [T, O] in the dtype of `x_TC`.

    Inputs are rounded as `quantise_inputs` says, by blocks of the matrix. Products of float8 are
    added up in float32 within a block of inputs; the sum is multiplied by the scale of the inputs,
    then by that of the matrix, and added to those before it, block after block, in float32.
    """
    rows, size = weight.block
    matrix_OC, bias_O = weight.numbers.matrix_OC, weight.numbers.bias_O
    numbers_TC, scales_TD = quantise_inputs(x_TC, size)
    num_outputs = len(matrix_OC)
    scales_OD = weight.scales_BD.repeat_interleave(rows, dim=0)[:num_outputs]

    out_TO = torch.zeros(len(x_TC), num_outputs, device=x_TC.device)
    for block in range(scales_TD.shape[1]):
        inputs = slice(block * size, (block + 1) * size)
        sums_TO = numbers_TC[:, inputs].float() @ matrix_OC[:, inputs].float().T
        out_TO += sums_TO * scales_TD[:, block, None] * scales_OD[:, block]
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

    gate_up has gate rows, then up rows, in each slot. What an expert's hidden layer says is rounded
    as its inputs are. The host waits for the device.
    """
    by_choice_TKC = x_TC.new_zeros(*expert_ids_TK.shape, x_TC.shape[1])
    for slot in range(len(gate_up.numbers.matrix_OC)):
        tokens_X, choices_X = (expert_ids_TK == slot).nonzero(as_tuple=True)
        if len(tokens_X):
            hidden_XI = glu(scaled_linear(x_TC[tokens_X], gate_up.slot(slot)), form)
            weights_X1 = weights_TK[tokens_X, choices_X, None].to(x_TC.dtype)
            out_XC = scaled_linear(hidden_XI, down.slot(slot))
            by_choice_TKC[tokens_X, choices_X] = out_XC * weights_X1
    return by_choice_TKC.sum(1)
