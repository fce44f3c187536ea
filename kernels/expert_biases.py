"""What experts add to their products.

Legend: E experts, C hidden, I twice the intermediate size.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertBiases:
    """One of each for every expert, in the dtype of their weights."""

    gate_up_EI: Tensor
    """Of gate, then of up."""
    down_EC: Tensor
    """Added before an expert's output is weighted."""
