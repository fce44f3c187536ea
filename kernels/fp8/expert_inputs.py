"""What the kernels of experts in float8 are given, and checks of it.

Legend: as in `scaled_experts`.
"""

from dataclasses import dataclass

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.scaled_tiles import ScaledTile
from raydix.kernels.fp8.weight_inputs import check_weight
from raydix.kernels.moe.expert_inputs import check_choices
from raydix.kernels.weights.scaled_weight import ScaledWeight


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Inputs of a product."""

    values: Tensor
    """Floats, or float8 numbers if there are scales."""
    scales_DT: Tensor | None


def check_experts(
    x_TC: Tensor,
    gate_up: ScaledWeight,
    down: ScaledWeight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
) -> None:
    """Raise ValueError if a shape, dtype or stride differs from what `scaled_experts` expects."""
    check_weight(x_TC, gate_up, num_dimensions=3)
    num_experts, hidden, intermediate = down.numbers.matrix_OC.shape
    check_weight(x_TC.new_empty((0, intermediate)), down, num_dimensions=3)
    expected = (num_experts, 2 * intermediate, x_TC.shape[1])
    if gate_up.numbers.matrix_OC.shape != expected or hidden != x_TC.shape[1]:
        raise ValueError(
            f"Weights are {tuple(gate_up.numbers.matrix_OC.shape)} and "
            f"{tuple(down.numbers.matrix_OC.shape)}; expected [E, 2 x I, C] and [E, C, I]."
        )
    if not gate_up.is_per_output and intermediate % BLOCK:
        raise ValueError(
            f"I is {intermediate}; expected a multiple of {BLOCK}, so that no block has rows of "
            "both gate and up."
        )
    if gate_up.numbers.bias_O is not None or down.numbers.bias_O is not None:
        raise ValueError("The experts have biases; expected float8 experts without.")
    check_choices(x_TC, weights_TK, expert_ids_TK)


def matrices_of(weight: ScaledWeight, tile: ScaledTile) -> TensorDescriptor:
    """All experts' matrices, one below the other, in tiles of one block of inputs."""
    matrix_OC = weight.numbers.matrix_OC
    return TensorDescriptor.from_tensor(
        matrix_OC.view(-1, matrix_OC.shape[-1]), [tile.columns, BLOCK]
    )
