import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.fp8.rounding import round_inputs
from raydix.kernels.reference import scaled_linear as reference


@pytest.mark.parametrize("shape", [(1, 128), (9, 320), (30, 1100), (12, 48)])
def test_all_inputs_are_rounded_as_the_twin_rounds_them(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape, device=device, dtype=dtype)
    x *= torch.logspace(-33, 33, shape[0], device=device, dtype=dtype)[:, None]
    x[-1, :3] = 0.0

    numbers, scales = round_inputs(x)

    expected_numbers, expected_scales = reference.round_inputs(x, 128)
    assert torch.equal(scales, expected_scales.T)
    assert torch.equal(numbers.view(torch.uint8), expected_numbers.view(torch.uint8))


def test_bad_inputs_are_refused() -> None:
    for x in (torch.zeros(3, 128, dtype=torch.float16), torch.zeros(3), torch.zeros(128, 3).T):
        with pytest.raises(ValueError, match="expected bfloat16 or float32"):
            round_inputs(x)
