import torch

from raydix.kernels.reference.activation import silu_mul


def test_silu_mul_gates_the_second_half() -> None:
    gate, up = torch.randn(2, 4, 5)

    out = silu_mul(torch.cat((gate, up), dim=-1))

    torch.testing.assert_close(out, gate / (1 + torch.exp(-gate)) * up)
