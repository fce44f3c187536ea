import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.moe.permute import ExpertBlocks, max_blocks, permute_by_expert


def random_ids(num_tokens: int, num_experts: int, choices: int) -> torch.Tensor:
    """Distinct experts for each token, as a router chooses them; low ids more often."""
    generator = torch.Generator().manual_seed(num_tokens)
    odds = torch.linspace(8, 1, num_experts).expand(num_tokens, -1)
    return torch.multinomial(odds, choices, generator=generator).int()


def used(blocks: ExpertBlocks) -> list[tuple[int, int, int]]:
    """(expert, start, end) of each block."""
    count = int(blocks.num_blocks_1)
    columns = (blocks.experts_B, blocks.starts_B, blocks.ends_B)
    return list(zip(*(column[:count].tolist() for column in columns), strict=True))


@pytest.mark.parametrize("block_rows", [16, 64])
@pytest.mark.parametrize(
    "shape", [(1, 128, 8), (16, 128, 8), (130, 128, 8), (300, 8, 2), (50, 3, 3), (1100, 20, 4)]
)
def test_pairs_are_sorted_by_expert_and_cut_into_blocks(
    device: torch.device, shape: tuple[int, int, int], block_rows: int
) -> None:
    num_tokens, num_experts, choices = shape
    expert_ids = random_ids(num_tokens, num_experts, choices)

    blocks = permute_by_expert(expert_ids.to(device), num_experts, block_rows)

    pairs = expert_ids.flatten().long().argsort(stable=True)
    assert torch.equal(blocks.pairs_X.cpu().long(), pairs)
    ends = expert_ids.flatten().bincount(minlength=num_experts).cumsum(0).tolist()
    expected = [
        (expert, first, min(first + block_rows, end))
        for expert, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        for first in range(start, end, block_rows)
    ]
    assert used(blocks) == expected
    own = [expert for expert, _, _ in expected]
    assert blocks.firsts_B[: len(own)].tolist() == [own.index(expert) for expert in own]
    assert blocks.counts_B[: len(own)].tolist() == [own.count(expert) for expert in own]
    assert len(expected) <= max_blocks(expert_ids.numel(), num_experts, block_rows)


@pytest.mark.parametrize("num_tokens", [40, 2100])
def test_choices_without_an_expert_are_left_out(device: torch.device, num_tokens: int) -> None:
    expert_ids = random_ids(num_tokens, 6, 2)
    expert_ids[::3, 1] = -1
    expert_ids[1::5, 0] = 4
    kept = (expert_ids.flatten() >= 0) & (expert_ids.flatten() < 4)

    blocks = permute_by_expert(expert_ids.to(device), 4, 16)

    expected = [pair for pair in expert_ids.flatten().argsort(stable=True).tolist() if kept[pair]]
    assert blocks.pairs_X[: len(expected)].tolist() == expected
    assert used(blocks)[-1][2] == len(expected)


def test_a_single_expert_needs_the_fewest_blocks(device: torch.device) -> None:
    blocks = permute_by_expert(torch.full((33, 1), 2, device=device), 4, 16)

    assert used(blocks) == [(2, 0, 16), (2, 16, 32), (2, 32, 33)]


def test_no_tokens_need_no_block(device: torch.device) -> None:
    blocks = permute_by_expert(torch.empty((0, 8), dtype=torch.int32, device=device), 128, 16)

    assert used(blocks) == []


@pytest.mark.parametrize(
    ("expert_ids", "num_experts", "block_rows"),
    [
        (torch.zeros(2, 2), 4, 16),
        (torch.zeros(2, 2, dtype=torch.int32).T[:1].expand(3, 2), 4, 16),
        (torch.zeros(2, dtype=torch.int32), 4, 16),
        (torch.zeros(2, 2, dtype=torch.int32), 2000, 16),
        (torch.zeros(2, 2, dtype=torch.int32), 4, 24),
    ],
)
def test_bad_inputs_are_refused(
    expert_ids: torch.Tensor, num_experts: int, block_rows: int
) -> None:
    with pytest.raises(ValueError, match="expected"):
        permute_by_expert(expert_ids, num_experts, block_rows)
