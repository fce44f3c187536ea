import torch

from raydix.kernels.reference.norm import rms_norm


def test_rms_norm_has_unit_root_mean_square() -> None:
    x = torch.randn(4, 32) * 7

    out = rms_norm(x, torch.full((32,), 2.0), 0.0)

    torch.testing.assert_close(out.pow(2).mean(-1), torch.full((4,), 4.0))


def test_the_residual_becomes_the_sum_in_place() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    total = residual + x

    out = rms_norm(x, weight, 1e-6, residual_TC=residual)

    assert torch.equal(residual, total)
    assert torch.equal(out, rms_norm(total, weight, 1e-6))
