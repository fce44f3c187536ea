import torch

from raydix.kernels.reference.token_mask import mask_tokens


def test_tokens_without_their_bit_are_masked_in_rows_that_are_named() -> None:
    logits = torch.zeros(2, 34)

    mask_tokens(logits, torch.tensor([1]), torch.tensor([[-(2**31) + 1, 2]], dtype=torch.int32))

    assert torch.isfinite(logits[1]).nonzero()[:, 0].tolist() == [0, 31, 33]
    assert not logits[0].any()
