"""Plain PyTorch twin of the activation.

Legend: T tokens of the step, I twice the intermediate size.
"""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up_TI: Tensor) -> Tensor:
    """SwiGLU: silu of the first half of the last dimension times its second half."""
    gate_TI, up_TI = gate_up_TI.chunk(2, dim=-1)
    return functional.silu(gate_TI) * up_TI
