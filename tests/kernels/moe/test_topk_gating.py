import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.moe.topk_gating import topk_gating
from raydix.kernels.reference import experts as reference


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("shape", [(7, 128, 8), (5, 8, 2), (3, 60, 4), (1, 5, 5)])
def test_choices_match_the_twin(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], renormalise: bool
) -> None:
    num_tokens, num_experts, choices = shape
    # Distinct logits, also in bfloat16: the twin leaves the order of equals open.
    logits = (
        torch.stack([torch.randperm(num_experts) for _ in range(num_tokens)])
        .div(8)
        .to(device, dtype)
    )

    weights, expert_ids = topk_gating(logits, choices, renormalise=renormalise)

    expected_weights, expected_ids = reference.topk_gating(logits, choices, renormalise=renormalise)
    assert torch.equal(expert_ids.long(), expected_ids)
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


def test_lower_ids_come_first_among_equals(device: torch.device) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 0.0]], device=device)

    weights, expert_ids = topk_gating(logits, 4, renormalise=True)

    assert expert_ids.tolist() == [[1, 3, 0, 2]]
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0, device=device))


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("num_experts", [128, 60, 256])
def test_a_row_of_nan_has_experts_that_exist_and_no_weight(
    device: torch.device, num_experts: int, renormalise: bool
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, num_experts, device=device)
    alone, _ = topk_gating(logits, 8, renormalise=renormalise)
    logits[1] = float("nan")

    weights, expert_ids = topk_gating(logits, 8, renormalise=renormalise)

    assert expert_ids[1].tolist() == list(range(8))
    assert weights[1].isnan().all()
    assert torch.equal(weights[::2], alone[::2])


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("place", [0, 57, 59])
def test_a_row_that_is_partly_nan_fails_alone_as_that_of_the_twin_does(
    device: torch.device, dtype: torch.dtype, place: int, renormalise: bool
) -> None:
    # The NaN takes the place of one of the four last, which are chosen without it, or of another.
    logits = torch.arange(60).expand(3, -1).div(8).to(device, dtype)
    alone, _ = topk_gating(logits, 4, renormalise=renormalise)
    logits[1, place] = float("nan")

    weights, expert_ids = topk_gating(logits, 4, renormalise=renormalise)

    expected, _ = reference.topk_gating(logits, 4, renormalise=renormalise)
    assert torch.equal(weights.isnan(), expected.isnan())
    assert weights[1].isnan().all()
    assert torch.equal(weights[::2], alone[::2])
    assert len(set(expert_ids[1].tolist())) == 4


def test_experts_of_a_row_that_is_partly_infinite_differ(device: torch.device) -> None:
    logits = torch.full((2, 6), float("-inf"), device=device)
    logits[:, 4] = 1.0
    logits[1, 2] = float("nan")

    _, expert_ids = topk_gating(logits, 4, renormalise=True)

    assert expert_ids.tolist() == [[4, 0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("logits", "choices"),
    [
        (torch.zeros(2, 8, dtype=torch.float16), 2),
        (torch.zeros(8, 2).T, 2),
        (torch.zeros(2, 8), 9),
        (torch.zeros(2, 8), 0),
        (torch.zeros(1, 2048), 2),
    ],
)
def test_bad_inputs_are_refused(logits: torch.Tensor, choices: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        topk_gating(logits, choices, renormalise=True)
