import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.activation import glu
from raydix.kernels.dense.glu_form import ClampedGlu, GeluTanhGlu, GluForm, SiluGlu
from raydix.kernels.reference import activation as reference


@pytest.mark.parametrize("form", [SiluGlu(), GeluTanhGlu(), ClampedGlu(slope=1.702, limit=7.0)])
@pytest.mark.parametrize("size", [9728, 768, 40])
def test_activation_matches_its_twin(
    device: torch.device, size: int, dtype: torch.dtype, form: GluForm
) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(3, 2 * size)).to(device, dtype)

    out = glu(gate_up, form)

    rtol = 1e-5 if dtype == torch.float32 else 2**-7
    # The clamped form rounds once, its twin after every operation.
    is_clamped = isinstance(form, ClampedGlu)
    expected = reference.glu(gate_up.float() if is_clamped else gate_up, form).to(dtype)
    # Far below zero, 1 + tanh loses the digits that the kernel's sigmoid keeps.
    torch.testing.assert_close(out, expected, atol=5e-6, rtol=rtol)


def test_summands_are_added_and_rounded_first(device: torch.device, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    summands = torch.randn(3, 5, 2 * 40).to(device)

    out = glu(summands, SiluGlu(), dtype=dtype)

    expected = reference.glu(summands.sum(0).to(dtype), SiluGlu())
    rtol = 1e-5 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=rtol)


@pytest.mark.parametrize(
    "gate_up", [torch.zeros(2, 7), torch.zeros(8, 2).T, torch.zeros(2, 8, dtype=torch.float16)]
)
def test_bad_inputs_are_refused(gate_up: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected"):
        glu(gate_up, SiluGlu())


def test_summands_of_an_unfit_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        glu(torch.zeros(3, 2, 8), SiluGlu(), dtype=torch.float16)
