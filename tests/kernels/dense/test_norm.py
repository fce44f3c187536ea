import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.norm import rms_norm
from raydix.kernels.reference import norm as reference

EPS = 1e-6


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", [(5, 2048), (3, 96), (1, 2560)])
def test_norm_matches_its_twin(
    device: torch.device, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = (3 * torch.randn(shape)).to(device, dtype)
    weight = torch.randn(shape[1]).to(device, dtype)

    out = rms_norm(x, weight, EPS)

    assert_close(out, reference.rms_norm(x, weight, EPS))


def test_residual_takes_the_sum_and_the_sum_is_normed(
    device: torch.device, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(4, 200).to(device, dtype), torch.randn(4, 200).to(device, dtype)
    weight = torch.randn(200).to(device, dtype)
    total = residual + x

    out = rms_norm(x, weight, EPS, residual_TC=residual)

    assert torch.equal(residual, total)
    assert_close(out, reference.rms_norm(total, weight, EPS))


@pytest.mark.parametrize("num_summands", [1, 3])
def test_summands_are_added_and_rounded_before_the_residual(
    device: torch.device, dtype: torch.dtype, num_summands: int
) -> None:
    summands = torch.randn(num_summands, 4, 200).to(device)
    residual, weight = (torch.randn(4, 200).to(device, dtype) for _ in range(2))
    expected_residual = residual + summands.sum(0).to(dtype)

    out = rms_norm(summands, weight[0], EPS, residual_TC=residual, dtype=dtype)

    assert_close(residual, expected_residual)
    assert_close(out, reference.rms_norm(residual, weight[0], EPS))
    whole = summands.sum(0).to(dtype)
    out = rms_norm(summands, weight[0], EPS, dtype=dtype)
    assert_close(out, reference.rms_norm(whole, weight[0], EPS))


def test_float32_weight_leaves_one_rounding(device: torch.device, dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 200).to(device, dtype), torch.randn(200).to(device)

    out = rms_norm(x, weight, EPS)

    assert_close(out, reference.rms_norm(x.float(), weight, EPS).to(dtype))


def test_rows_may_lie_apart(device: torch.device) -> None:
    x = torch.randn(4, 3, 64, device=device)[:, 1]

    out = rms_norm(x, torch.ones(64, device=device), EPS)

    assert_close(out, reference.rms_norm(x, torch.ones(64, device=device), EPS))


@pytest.mark.parametrize(
    ("x", "weight", "residual"),
    [
        (torch.zeros(2, 8, dtype=torch.float16), torch.zeros(8, dtype=torch.float16), None),
        (torch.zeros(2, 8), torch.zeros(8, dtype=torch.bfloat16), None),
        (torch.zeros(2, 8), torch.zeros(4), None),
        (torch.zeros(8, 2).T, torch.zeros(8), None),
        (torch.zeros(2, 8), torch.zeros(8), torch.zeros(3, 8)),
        (torch.zeros(1, 2, 8), torch.zeros(8), torch.zeros(3, 8)),
        (torch.zeros(1, 2, 8).bfloat16(), torch.zeros(8), torch.zeros(2, 8)),
        (torch.zeros(99, 2, 8), torch.zeros(8), torch.zeros(2, 8)),
    ],
)
def test_bad_inputs_are_refused(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None
) -> None:
    with pytest.raises(ValueError, match="expected"):
        rms_norm(x, weight, EPS, residual_TC=residual)


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    """bfloat16: one unit in the last place, for float32 sums of another order may round apart."""
    rtol = 1e-5 if out.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=rtol)
