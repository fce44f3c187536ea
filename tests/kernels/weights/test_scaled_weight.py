"""Ranks cut a matrix of blocks with its scales, and compute together what one does."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from raydix.errors import ConfigError
from raydix.kernels.reference.scaled_linear import scaled_linear
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import ScaledWeight, empty_scaled_weight
from raydix.kernels.weights.weight import Weight
from raydix.kernels.weights.weight_part import WeightPart

BLOCK = (4, 8)
CPU = torch.device("cpu")


def random_wholes(outputs: int, inputs: int, *, bias: bool = True) -> dict[str, Tensor]:
    """A matrix of blocks, the last of which may be short, as a checkpoint has it."""
    shape = -(-outputs // BLOCK[0]), -(-inputs // BLOCK[1])
    wholes = {
        "weight": torch.randn(outputs, inputs).to(torch.float8_e4m3fn),
        "weight_scale": torch.rand(shape) + 0.5,
    }
    return {**wholes, "bias": torch.randn(outputs)} if bias else wholes


def fill(parts: Mapping[str, WeightPart], wholes: Mapping[str, Tensor]) -> None:
    assert parts.keys() == wholes.keys()
    for name, part in parts.items():
        assert part.whole_shape == wholes[name].shape
        part.fill(wholes[name])


def empty(outputs: int, inputs: int, *, bias: bool = True) -> ScaledWeight:
    return empty_scaled_weight(
        outputs, inputs, block=BLOCK, bias=bias, device=CPU, dtype=torch.float32
    )


def whole(wholes: Mapping[str, Tensor]) -> ScaledWeight:
    weight = empty(*wholes["weight"].shape, bias="bias" in wholes)
    fill(weight.whole_parts(), wholes)
    return weight


@pytest.mark.parametrize("outputs", [24, 22])
def test_ranks_with_rows_have_the_outputs_side_by_side(outputs: int) -> None:
    """A last block that is short is that of the last rank; rows past the end are zero."""
    torch.manual_seed(0)
    wholes, x = random_wholes(outputs, 20), torch.randn(5, 20)
    ranks = [empty(12, 20) for _ in range(2)]

    for rank, weight in enumerate(ranks):
        fill(weight.row_parts(RankShare(rank, 2), outputs), wholes)

    out = torch.cat([scaled_linear(x, weight) for weight in ranks], dim=1)
    assert torch.equal(out[:, :outputs], scaled_linear(x, whole(wholes)))
    assert not out[:, outputs:].any()


def test_ranks_with_heads_have_those_of_their_own() -> None:
    torch.manual_seed(0)
    wholes, x = random_wholes(24, 20), torch.randn(5, 20)
    weight = empty(12, 20)

    fill(weight.head_parts(range(2, 4), 4), wholes)

    assert torch.equal(scaled_linear(x, weight), scaled_linear(x, whole(wholes))[:, 12:])


def test_outputs_of_ranks_with_columns_add_up() -> None:
    torch.manual_seed(0)
    wholes, x = random_wholes(10, 32), torch.randn(5, 32)
    ranks = [empty(10, 16) for _ in range(2)]

    for rank, weight in enumerate(ranks):
        fill(weight.column_parts(RankShare(rank, 2), 32), wholes)

    halves = x.split(16, dim=1)
    parts = [scaled_linear(half, weight) for half, weight in zip(halves, ranks, strict=True)]
    torch.testing.assert_close(parts[0] + parts[1], scaled_linear(x, whole(wholes)))


def test_one_product_takes_matrices_that_a_checkpoint_has_apart() -> None:
    torch.manual_seed(0)
    x, stacked = torch.randn(3, 20), empty(22, 20)
    apart = [random_wholes(size, 20) for size in (8, 8, 6)]

    for view, wholes in zip(stacked.split((8, 8, 6)), apart, strict=True):
        fill(view.whole_parts(), wholes)

    expected = torch.cat([scaled_linear(x, whole(wholes)) for wholes in apart], dim=1)
    assert torch.equal(scaled_linear(x, stacked), expected)


def test_a_seat_of_a_bank_is_a_matrix_with_its_scales() -> None:
    torch.manual_seed(0)
    bank = ScaledWeight(
        Weight(torch.zeros(3, 8, 20).to(torch.float8_e4m3fn), None), torch.zeros(3, 2, 3), BLOCK
    )
    wholes, x = random_wholes(16, 20, bias=False), torch.randn(5, 20)

    parts = bank.row_parts(RankShare(1, 2), 16)
    fill({name: part.seat(2) for name, part in parts.items()}, wholes)

    assert torch.equal(scaled_linear(x, bank.seat(2)), scaled_linear(x, whole(wholes))[:, 8:])
    assert not bank.numbers.matrix_OC[:2].float().any()


def test_all_bytes_of_a_weight_are_in_its_parts() -> None:
    weight = empty(12, 20)
    held = sum(tensor.nbytes for tensor in weight.tensors())
    parts = weight.whole_parts().values()
    assert sum(part.target.nbytes for part in parts) == held == 12 * 20 + 4 * 3 * 3 + 4 * 12


def test_a_cut_within_a_block_is_refused() -> None:
    weight, share = empty(10, 12), RankShare(1, 2)
    with pytest.raises(ConfigError, match="10 outputs, from 10, are no whole blocks of 4"):
        weight.row_parts(share, 20)
    with pytest.raises(ConfigError, match="12 inputs, from 12, are no whole blocks of 8"):
        weight.column_parts(share, 24)
    with pytest.raises(ConfigError, match="10 outputs of heads, from 0, are no whole blocks of 4"):
        weight.head_parts(range(2), 4)
    with pytest.raises(ConfigError, match="outputs that one product takes together"):
        weight.split((6, 4))
