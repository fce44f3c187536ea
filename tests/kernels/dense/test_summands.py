import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.summands import MAX_SUMMANDS, add_up, first_summand


def test_product_is_its_own_only_summand_and_keeps_its_dtype() -> None:
    product = torch.zeros(2, 8, dtype=torch.bfloat16)
    first, num_summands, dtype = first_summand(product, torch.float32)
    assert first is product
    assert (num_summands, dtype) == (1, torch.bfloat16)


def test_summands_have_the_dtype_that_they_add_up_to() -> None:
    summands = torch.arange(3 * 2 * 8, dtype=torch.float32).view(3, 2, 8)
    first, num_summands, dtype = first_summand(summands, torch.bfloat16)
    assert torch.equal(first, summands[0])
    assert (num_summands, dtype) == (3, torch.bfloat16)


@pytest.mark.parametrize(
    "summands",
    [
        torch.zeros(0, 2, 8),
        torch.zeros(MAX_SUMMANDS + 1, 2, 8),
        torch.zeros(3, 2, 8, dtype=torch.bfloat16),
        torch.zeros(3, 8, 2).mT,
    ],
)
def test_unfit_summands_are_refused(summands: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected"):
        first_summand(summands, torch.bfloat16)
    with pytest.raises(ValueError, match="expected"):
        add_up(summands, torch.bfloat16)


def test_summands_without_a_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="dtype"):
        first_summand(torch.zeros(3, 2, 8), None)


def test_product_is_not_added_up() -> None:
    with pytest.raises(ValueError, match="expected"):
        add_up(torch.zeros(2, 8), torch.bfloat16)
