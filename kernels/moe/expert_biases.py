"""What experts add to their products.

Legend: E experts, C hidden, I twice the intermediate size.
"""

from dataclasses import dataclass

from torch import Tensor

from raydix.kernels.weights.weight import Weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertBiases:
    """One of each for every expert, in the dtype of their weights."""

    gate_up_EI: Tensor
    """The biases of each expert's gate, followed by those of its up projection."""
    down_EC: Tensor
    """The biases of each expert's output, added before the output is weighted."""


def biases_of(gate_up: Weight, down: Weight) -> ExpertBiases | None:
    """The biases of a bank's experts; None if they have none."""
    if gate_up.bias_O is None or down.bias_O is None:
        return None
    return ExpertBiases(gate_up_EI=gate_up.bias_O, down_EC=down.bias_O)
