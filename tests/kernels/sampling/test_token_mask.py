"""The mask of tokens against its twin."""

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.reference import token_mask as reference
from raydix.kernels.sampling.token_mask import mask_tokens

SHAPES = [(1, 1, 1), (3, 2, 33), (4, 3, 4096), (2, 2, 4097), (5, 0, 64)]
GPU_SHAPES = [(1, 1, 151_936), (32, 32, 151_936), (32, 7, 201_088)]


def compare(num_rows: int, num_masked: int, vocab_size: int, device: str) -> None:
    torch.manual_seed(num_rows + vocab_size)
    logits = torch.randn(num_rows, vocab_size, device=device)
    rows = torch.randperm(num_rows, device=device)[:num_masked]
    words = torch.randint(-(2**31), 2**31, (num_masked, -(-vocab_size // 32)), device=device).to(
        torch.int32
    )
    expected = logits.clone()
    reference.mask_tokens(expected, rows, words)

    mask_tokens(logits, rows, words)

    assert torch.equal(logits, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_masked_as_by_the_twin(shape: tuple[int, int, int], device: str) -> None:
    compare(*shape, device)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_large_vocabularies_are_masked_as_by_the_twin(shape: tuple[int, int, int]) -> None:
    compare(*shape, "cuda")


def test_words_of_another_vocabulary_are_refused(device: str) -> None:
    logits = torch.zeros(2, 40, device=device)
    rows = torch.tensor([0], device=device)

    with pytest.raises(ValueError, match="int32 of 2 words a row"):
        mask_tokens(logits, rows, torch.zeros(1, 1, dtype=torch.int32, device=device))
