import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.activation import silu_mul
from raydix.kernels.reference import activation as reference


@pytest.mark.parametrize("size", [9728, 768, 40])
def test_activation_matches_its_twin(device: torch.device, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(3, 2 * size)).to(device, dtype)

    out = silu_mul(gate_up)

    rtol = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out, reference.silu_mul(gate_up), atol=1e-6, rtol=rtol)


@pytest.mark.parametrize(
    "gate_up", [torch.zeros(2, 7), torch.zeros(8, 2).T, torch.zeros(2, 8, dtype=torch.float16)]
)
def test_bad_inputs_are_refused(gate_up: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected"):
        silu_mul(gate_up)
