"""Plain PyTorch twins of products with weights of every kind.

Legend: T tokens of the step, C inputs; K experts per token.
"""

from torch import Tensor
from torch.nn import functional

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.moe.expert_biases import biases_of
from raydix.kernels.reference import experts, int4_linear, scaled_linear
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.linear_weight import LinearWeight, int4_bank, scaled_bank
from raydix.kernels.weights.scaled_weight import ScaledWeight


def linear(x_TC: Tensor, weight: LinearWeight) -> Tensor:
    """Multiply by a weight and add its bias, as `ModelOps.linear` says."""
    if isinstance(weight, ScaledWeight):
        return scaled_linear.scaled_linear(x_TC, weight)
    if isinstance(weight, Int4Weight):
        return int4_linear.int4_linear(x_TC, weight)
    return functional.linear(x_TC, weight.matrix_OC, weight.bias_O)


def fused_experts(
    x_TC: Tensor,
    gate_up: LinearWeight,
    down: LinearWeight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
) -> Tensor:
    """Run a bank's experts on the rows, as `ModelOps.fused_experts` says."""
    if isinstance(gate_up, ScaledWeight) or isinstance(down, ScaledWeight):
        return scaled_linear.scaled_experts(
            x_TC, *scaled_bank(gate_up, down), weights_TK, expert_ids_TK, form=form
        )
    if isinstance(gate_up, Int4Weight) or isinstance(down, Int4Weight):
        return int4_linear.int4_experts(
            x_TC, *int4_bank(gate_up, down), weights_TK, expert_ids_TK, form=form
        )
    return experts.fused_experts(
        x_TC,
        gate_up.matrix_OC,
        down.matrix_OC,
        weights_TK,
        expert_ids_TK,
        form=form,
        biases=biases_of(gate_up, down),
    )
