"""Plain PyTorch twin of the activation.

Legend: T tokens of the step, I twice the intermediate size.
"""

from typing import assert_never

from torch import Tensor
from torch.nn import functional

from raydix.kernels.dense.glu_form import ClampedGlu, GeluTanhGlu, GluForm, SiluGlu


def glu(gate_up_TI: Tensor, form: GluForm) -> Tensor:
    """The hidden layer of a feed-forward, from gate and up in the halves of the last dimension."""
    gate_TI, up_TI = gate_up_TI.chunk(2, dim=-1)
    match form:
        case SiluGlu():
            return functional.silu(gate_TI) * up_TI
        case GeluTanhGlu():
            return functional.gelu(gate_TI, approximate="tanh") * up_TI
        case ClampedGlu():
            gate_TI = gate_TI.clamp(max=form.limit)
            up_TI = up_TI.clamp(min=-form.limit, max=form.limit)
            return (up_TI + 1) * (gate_TI * (form.slope * gate_TI).sigmoid())
        case _:
            assert_never(form)
