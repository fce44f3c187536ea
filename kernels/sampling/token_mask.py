# mypy: disable-error-code="no-untyped-def"
"""Masks of tokens on packed bits.

Legend: B rows of logits, M masked ones among them, V vocabulary, W words of 32 bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART = 4096
"""The number of tokens that one program looks at."""


def mask_tokens(logits_BV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Mask tokens in place, as `reference.token_mask.mask_tokens` does.

    Raises ValueError if a shape, dtype or stride differs.
    """
    check_inputs(logits_BV, rows_M, words_MW)
    vocab_size = logits_BV.shape[1]
    if len(rows_M):
        _mask[(len(rows_M), triton.cdiv(vocab_size, _PART))](
            logits_BV,
            rows_M,
            words_MW,
            vocab_size,
            logits_BV.stride(0),
            words_MW.stride(0),
            PART=_PART,
            num_warps=4,
        )


def check_inputs(logits_BV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
    """Raise ValueError unless a kernel can work on these."""
    num_words = -(-logits_BV.shape[1] // 32)
    if (
        logits_BV.dtype != torch.float32
        or logits_BV.stride(1) != 1
        or rows_M.dtype != torch.int64
        or words_MW.dtype != torch.int32
        or words_MW.shape != (len(rows_M), num_words)
        or not words_MW.is_contiguous()
    ):
        raise ValueError(
            f"logits {logits_BV.dtype} {tuple(logits_BV.shape)}, rows {rows_M.dtype} "
            f"{tuple(rows_M.shape)}, words {words_MW.dtype} {tuple(words_MW.shape)}; expected "
            f"float32 rows, int64, and int32 of {num_words} words a row, contiguous in the last"
        )


@triton.jit
def _mask(logits_BV, rows_M, words_MW, vocab_size, logits_stride, words_stride, PART: tl.constexpr):
    """Each program looks at a part of one masked row's vocabulary."""
    masked = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_M + masked)
    tokens = tl.program_id(1) * PART + tl.arange(0, PART)
    is_token = tokens < vocab_size
    words = tl.load(words_MW + masked * words_stride + tokens // 32, mask=is_token, other=-1)
    is_refused = ((words >> (tokens % 32)) & 1) == 0
    refused = tl.full((PART,), float("-inf"), tl.float32)
    tl.store(logits_BV + row * logits_stride + tokens, refused, mask=is_token & is_refused)
