"""What a product with float8 in blocks computes, number by number."""

import math

import pytest
import torch
from torch import Tensor

from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.reference.activation import glu
from raydix.kernels.reference.experts import fused_experts
from raydix.kernels.reference.scaled_linear import (
    round_inputs,
    scaled_experts,
    scaled_linear,
)
from raydix.kernels.weights.scaled_weight import ScaledWeight
from raydix.kernels.weights.weight import Weight

BLOCK = (128, 128)


def random_weight(outputs: int, inputs: int, *, bias: bool = False) -> ScaledWeight:
    numbers = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-outputs // BLOCK[0]), -(-inputs // BLOCK[1])) + 0.5
    return ScaledWeight(Weight(numbers, torch.randn(outputs) if bias else None), scales, BLOCK)


def restored(weight: ScaledWeight) -> Tensor:
    """The matrix as floats, number by number."""
    # As numbers of Python: a product of these two is exact in them, and rounded once at the end.
    scales = weight.scales_BD.tolist()
    rows = weight.numbers.matrix_OC.float().tolist()
    return torch.tensor(
        [
            [number * scales[o // BLOCK[0]][c // BLOCK[1]] for c, number in enumerate(row)]
            for o, row in enumerate(rows)
        ]
    )


def test_inputs_are_rounded_by_token_and_128_of_them() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 300) * torch.tensor([1e-3, 1.0, 1e4])[:, None]
    x[1, 0], x[1, 128] = 448.0, 448.1

    numbers, scales = round_inputs(x, 128)

    assert scales.shape == (3, 3)
    assert scales[1, :2].tolist() == [1.0, 2.0]
    for token in range(3):
        for group, start in enumerate((0, 128, 256)):
            inputs = x[token, start : start + 128]
            scale = 2.0 ** math.ceil(math.log2(inputs.abs().max() / 448))
            assert scales[token, group] == scale
            expected = (inputs / scale).to(torch.float8_e4m3fn)
            found = numbers[token, start : start + 128]
            assert torch.equal(found.float(), expected.float())
            assert 224 <= found.float().abs().max() <= 448


def test_inputs_of_zero_stay_zero() -> None:
    numbers, scales = round_inputs(torch.zeros(2, 256), 128)
    assert not numbers.float().any()
    assert scales.isfinite().all()
    assert not scaled_linear(torch.zeros(2, 256), random_weight(64, 256)).any()


@pytest.mark.parametrize("shape", [(576, 256), (192, 320), (1, 130)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_of_inputs_that_float8_holds_is_that_of_the_restored_matrix(
    shape: tuple[int, int], bias: bool
) -> None:
    """Nothing is rounded then but the sums."""
    torch.manual_seed(0)
    weight = random_weight(*shape, bias=bias)
    x = torch.randn(4, shape[1]).to(torch.float8_e4m3fn).float()
    x[:, ::128] = 448.0

    expected = x.double() @ restored(weight).double().T
    if weight.numbers.bias_O is not None:
        expected += weight.numbers.bias_O
    out = scaled_linear(x, weight)

    assert out.dtype == x.dtype
    largest = float(expected.abs().max())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6 * largest)


def test_rounding_the_inputs_costs_a_few_percent_and_not_more() -> None:
    """Float8 has 3 bits behind the first: a number is off by at most a sixteenth of itself."""
    torch.manual_seed(0)
    weight, x = random_weight(256, 512), torch.randn(16, 512)
    expected = x @ restored(weight).T

    error = (scaled_linear(x, weight) - expected).norm() / expected.norm()

    assert 0.005 < float(error) < 0.04


def test_two_scales_that_change_places_are_seen() -> None:
    torch.manual_seed(0)
    weight, x = random_weight(256, 256), torch.randn(4, 256)
    before = scaled_linear(x, weight)

    swapped = ScaledWeight(weight.numbers, weight.scales_BD.flip(1), BLOCK)

    assert (scaled_linear(x, swapped) - before).norm() / before.norm() > 0.05


def test_a_token_is_the_same_whatever_is_beside_it() -> None:
    """Scales of inputs are those of their own token."""
    torch.manual_seed(0)
    weight, x = random_weight(64, 256), torch.randn(4, 256)
    louder = torch.cat([x[:1], 1000 * x[1:]])
    torch.testing.assert_close(scaled_linear(louder, weight)[0], scaled_linear(x, weight)[0])


def random_bank(seats: int, outputs: int, inputs: int) -> ScaledWeight:
    each = [random_weight(outputs, inputs) for _ in range(seats)]
    numbers = torch.stack([weight.numbers.matrix_OC for weight in each])
    scales = torch.stack([weight.scales_BD / 16 for weight in each])
    return ScaledWeight(Weight(numbers, None), scales, BLOCK)


def test_an_expert_rounds_its_inputs_and_its_hidden_layer() -> None:
    torch.manual_seed(0)
    gate_up, down, x = random_bank(3, 512, 128), random_bank(3, 128, 256), torch.randn(2, 128)
    ids, weights = torch.tensor([[2], [-1]]), torch.tensor([[0.5], [0.5]])

    out = scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())

    hidden = glu(scaled_linear(x[:1], gate_up.seat(2)), SiluGlu())
    torch.testing.assert_close(out[:1], 0.5 * scaled_linear(hidden, down.seat(2)))
    assert not out[1].any()


def test_experts_are_near_those_of_the_restored_matrices() -> None:
    torch.manual_seed(0)
    gate_up, down, x = random_bank(4, 512, 128), random_bank(4, 128, 256), torch.randn(9, 128)
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(9)])
    weights = torch.rand(9, 2)

    out = scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())

    floats = [torch.stack([restored(bank.seat(s)) for s in range(4)]) for bank in (gate_up, down)]
    expected = fused_experts(x, *floats, weights, ids, form=SiluGlu(), biases=None)
    assert 0.005 < float((out - expected).norm() / expected.norm()) < 0.08
