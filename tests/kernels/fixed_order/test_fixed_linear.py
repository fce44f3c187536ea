"""A token's product is the same, bit for bit, among however many tokens it is computed."""

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.fixed_order.linear import fixed_linear

SIZES = [(96, 64), (160, 1040), (2048, 2048), (2048, 6144), (512, 4096), (12_288, 2048)]


@pytest.mark.parametrize("size", SIZES[:2])
@pytest.mark.parametrize("num_tokens", [0, 1, 33, 140])
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_a_linear_layer(
    device: torch.device, size: tuple[int, int], num_tokens: int, *, has_bias: bool
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(num_tokens, size[1]), torch.randn(size)
    bias = torch.randn(size[0]) if has_bias else None

    out = fixed_linear(x.to(device), weight.to(device), None if bias is None else bias.to(device))

    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(out.cpu(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES[2:], (2560, 9728), (128, 2048), (2880, 4096)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_bits_do_not_depend_on_the_number_of_tokens(
    size: tuple[int, int], *, has_bias: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3000, size[1], device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(size[0], device="cuda", dtype=torch.bfloat16) if has_bias else None
    whole = fixed_linear(x, weight, bias)
    expected = x[:500].float() @ weight.float().T
    expected += 0 if bias is None else bias.float()
    torch.testing.assert_close(whole[:500].float(), expected, atol=0.5, rtol=0.02)

    for count in (1, 2, 16, 17, 32, 33, 64, 65, 128, 129, 200, 256, 300, 512, 777, 1500):
        for first in (0, 1000):
            part = fixed_linear(x[first : first + count], weight, bias)
            assert torch.equal(part, whole[first : first + count]), (count, first)
