"""Plain PyTorch twins of products with weights in four bits: what kernels of them compute.

Legend: T tokens of the step, C inputs, O outputs, B bytes, G groups of inputs; K experts per token.
"""

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.int4.form import HALF
from raydix.kernels.reference import experts
from raydix.kernels.weights.int4_weight import Int4Weight


def restore(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """The floats for which a matrix, or a bank, stands: [O, C] or [S, O, C].

    (number - zero point) * scale in float32, rounded once to `dtype`: bit for bit what the way
    `restore` makes of the checkpoint.
    """
    bytes_OXH = weight.numbers.matrix_OC.unflatten(-1, (-1, HALF))
    numbers_OC = torch.stack((bytes_OXH & 0xF, bytes_OXH >> 4), dim=-2).flatten(-3)
    group = torch.arange(weight.num_inputs, device=numbers_OC.device) // weight.group
    zeros_OC = weight.zeros_GO.mT.float()[..., group]
    return (numbers_OC.float() - zeros_OC).mul_(weight.scales_GO.mT[..., group]).to(dtype)


def int4_linear(x_TC: Tensor, weight: Int4Weight) -> Tensor:
    """Multiply tokens by the restored matrix, and add its bias; [T, O]."""
    return functional.linear(x_TC, restore(weight, x_TC.dtype), weight.numbers.bias_O)


def int4_experts(
    x_TC: Tensor,
    gate_up: Int4Weight,
    down: Int4Weight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C], as of the restored bank's."""
    return experts.fused_experts(
        x_TC,
        restore(gate_up, x_TC.dtype),
        restore(down, x_TC.dtype),
        weights_TK,
        expert_ids_TK,
        form=form,
        biases=None,
    )
