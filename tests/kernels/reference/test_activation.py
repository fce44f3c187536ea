import math
from collections.abc import Callable

import pytest
import torch

from raydix.kernels.dense.glu_form import ClampedGlu, GeluTanhGlu, GluForm, SiluGlu
from raydix.kernels.reference.activation import glu


def silu(gate: float, up: float) -> float:
    return gate / (1 + math.exp(-gate)) * up


def gelu_tanh(gate: float, up: float) -> float:
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + math.tanh(inner)) * up


def clamped(gate: float, up: float) -> float:
    gate, up = min(gate, 2.5), max(min(up, 2.5), -2.5)
    return gate / (1 + math.exp(-1.7 * gate)) * (up + 1)


@pytest.mark.parametrize(
    ("form", "definition"),
    [
        (SiluGlu(), silu),
        (GeluTanhGlu(), gelu_tanh),
        (ClampedGlu(slope=1.7, limit=2.5), clamped),
    ],
)
def test_gate_in_the_first_half_activates_the_second(
    form: GluForm, definition: Callable[[float, float], float]
) -> None:
    gates, ups = [-4.0, -3.0, 0.5, 4.0], [-4.0, 4.0, 1.0, -2.0]

    out = glu(torch.tensor([gates + ups]), form)

    expected = [definition(gate, up) for gate, up in zip(gates, ups, strict=True)]
    torch.testing.assert_close(out, torch.tensor([expected]))
