"""What a layer may ask of its weight: products, views, and where a checkpoint's tensors go."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from raydix.kernels.ops import ModelOps, ReferenceOps, choose_ops
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight import Weight, empty_weight
from raydix.kernels.weights.weight_part import WeightPart

CPU = torch.device("cpu")


def fill(parts: dict[str, WeightPart], wholes: dict[str, Tensor]) -> None:
    assert parts.keys() == wholes.keys()
    for name, part in parts.items():
        assert part.whole_shape == wholes[name].shape
        part.fill(wholes[name])


def random_wholes(num_outputs: int, num_inputs: int) -> dict[str, Tensor]:
    return {"weight": torch.randn(num_outputs, num_inputs), "bias": torch.randn(num_outputs)}


def make_weight(num_outputs: int, num_inputs: int, *, bias: bool = True) -> Weight:
    return empty_weight(num_outputs, num_inputs, bias=bias, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("bias", [False, True])
def test_parts_have_all_bytes_of_a_weight(bias: bool) -> None:
    weight = make_weight(6, 4, bias=bias)
    share, held = RankShare(1, 2), sum(tensor.nbytes for tensor in weight.tensors())

    for parts in (
        weight.whole_parts(),
        weight.row_parts(share, 12),
        weight.column_parts(share, 8),
        weight.head_parts(range(2, 4), 4),
    ):
        assert set(parts) == ({"weight", "bias"} if bias else {"weight"})
        assert sum(part.target.nbytes for part in parts.values()) == held


def test_one_product_takes_matrices_that_a_checkpoint_has_apart() -> None:
    torch.manual_seed(0)
    x, stacked = torch.randn(3, 4), make_weight(9, 4)
    apart = [random_wholes(size, 4) for size in (4, 3, 2)]

    for view, wholes in zip(stacked.split((4, 3, 2)), apart, strict=True):
        fill(view.whole_parts(), wholes)

    expected = [torch.nn.functional.linear(x, *wholes.values()) for wholes in apart]
    torch.testing.assert_close(ReferenceOps().linear(x, stacked), torch.cat(expected, dim=1))


def test_ranks_with_rows_have_the_outputs_side_by_side() -> None:
    torch.manual_seed(0)
    x, wholes = torch.randn(3, 4), random_wholes(6, 4)
    ranks = [make_weight(2, 4) for _ in range(3)]

    for rank, weight in enumerate(ranks):
        fill(weight.row_parts(RankShare(rank, 3), 6), wholes)

    outputs = [ReferenceOps().linear(x, weight) for weight in ranks]
    expected = torch.nn.functional.linear(x, *wholes.values())
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected)


def test_ranks_with_columns_add_up_to_the_output_with_one_bias() -> None:
    torch.manual_seed(0)
    x, wholes = torch.randn(3, 6), random_wholes(4, 6)
    ranks = [make_weight(4, 2) for _ in range(3)]

    for rank, weight in enumerate(ranks):
        fill(weight.column_parts(RankShare(rank, 3), 6), wholes)

    outputs = [
        ReferenceOps().linear(part, weight)
        for part, weight in zip(x.split(2, dim=1), ranks, strict=True)
    ]
    expected = torch.nn.functional.linear(x, *wholes.values())
    torch.testing.assert_close(torch.stack(outputs).sum(0), expected)


def test_the_seats_of_a_bank_are_filled_one_by_one() -> None:
    bank = Weight(torch.zeros(3, 6, 4), torch.zeros(3, 6))
    apart = [random_wholes(6, 4) for _ in range(2)]

    gate_and_up = bank.split((3, 3))
    for view, wholes in zip(gate_and_up, apart, strict=True):
        parts = view.row_parts(RankShare(1, 2), 6)
        fill({name: part.seat(1) for name, part in parts.items()}, wholes)

    assert bank.bias_O is not None
    assert torch.equal(bank.matrix_OC[1], torch.cat([each["weight"][3:] for each in apart]))
    assert torch.equal(bank.bias_O[1], torch.cat([each["bias"][3:] for each in apart]))
    assert not bank.matrix_OC[[0, 2]].any()


def test_a_part_elsewhere_is_of_the_same_whole_and_keeps_nothing() -> None:
    weight, share = make_weight(6, 4), RankShare(0, 2)

    for parts in (weight.row_parts(share, 12), weight.column_parts(share, 7)):
        for part in parts.values():
            elsewhere = part.elsewhere()
            assert elsewhere.whole_shape == part.whole_shape
            assert elsewhere.target.numel() == 0
            elsewhere.fill(torch.ones(part.whole_shape))


def cuda_ops() -> ModelOps:
    return choose_ops(
        torch.device("cuda"), torch.bfloat16, head_counts=[(8, 2)], head_dims=[32], expert_sizes=()
    )


def added_up(out: Tensor) -> Tensor:
    return out if out.dim() == 2 else out.sum(0).bfloat16()


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 200])
def test_kernels_take_few_and_many_tokens_with_and_without_a_bias(
    num_tokens: int, bias: bool
) -> None:
    torch.manual_seed(0)
    weight = empty_weight(4096, 4096, bias=bias, device=torch.device("cuda"), dtype=torch.bfloat16)
    for tensor in weight.tensors():
        tensor.normal_(std=0.02)
    x = torch.randn(num_tokens, 4096, device="cuda", dtype=torch.bfloat16)
    ops: ModelOps = cuda_ops()
    products: tuple[Callable[[Tensor, Weight], Tensor], ...] = (ops.linear, ops.linear_summands)

    for product in products:
        out = added_up(product(x, weight))
        torch.testing.assert_close(out, ReferenceOps().linear(x, weight), atol=2e-2, rtol=2e-2)
