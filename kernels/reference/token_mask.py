"""The plain PyTorch twin of masks of tokens.

Legend: B rows of logits, M masked ones among them, V vocabulary, W words of 32 bits.
"""

import torch
from torch import Tensor


def mask_tokens(logits_BV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Set the logit (float32) of each token whose bit is 0 to minus infinity, in place.

    `rows_M`: int64, no row twice; `words_MW`: int32, token t of a row in bit t % 32 of word t / 32.
    """
    tokens_V = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    bits_MV = words_MW[:, tokens_V // 32] >> (tokens_V % 32).to(torch.int32) & 1
    logits_BV[rows_M] = logits_BV[rows_M].masked_fill(bits_MV == 0, float("-inf"))
