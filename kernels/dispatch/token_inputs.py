"""Checks of what the kernels that exchange tokens between ranks are given.

Legend: as in `token_buffers`.
"""

import torch
from torch import Tensor

from raydix.kernels.dispatch.token_buffers import TokenBuffers, TokenLayout

ALIGNMENT_BYTES = 16
"""The size of which rows are multiples, so that a thread copies as many bytes at a time."""


def check_tokens(
    x_TC: Tensor,
    weights_TK: Tensor,
    ids_TK: Tensor,
    own: TokenBuffers,
    layout: TokenLayout,
    first_row: int,
) -> None:
    """Raise ValueError if a shape, dtype or stride differs from what `push_tokens` expects."""
    check_rows("Tokens", x_TC, own.x_NC)
    num_tokens, max_tokens = x_TC.shape[0], layout.max_tokens
    if num_tokens > max_tokens or first_row + num_tokens > own.x_NC.shape[0]:
        raise ValueError(
            f"{num_tokens} tokens from row {first_row} on; expected at most {max_tokens}, and that "
            f"they end before row {own.x_NC.shape[0]}."
        )

    shape = (num_tokens, own.ids_NK.shape[1])
    if weights_TK.shape != shape or ids_TK.shape != shape:
        raise ValueError(
            f"Choices {tuple(weights_TK.shape)} and {tuple(ids_TK.shape)}; expected {shape} twice."
        )
    if weights_TK.dtype != torch.float32 or ids_TK.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"Choices are {weights_TK.dtype} and {ids_TK.dtype}; expected float32, and int32 or "
            "int64."
        )
    if not weights_TK.is_contiguous() or not ids_TK.is_contiguous():
        raise ValueError(
            f"Choices have strides {weights_TK.stride()}, {ids_TK.stride()}; expected contiguous "
            "ones."
        )


def check_rows(what: str, rows: Tensor, buffer: Tensor) -> None:
    """Raise ValueError if these are no rows for this buffer, named `what` in the message."""
    if rows.dtype != buffer.dtype or rows.shape[1:] != buffer.shape[1:]:
        raise ValueError(
            f"{what} are {rows.dtype} {tuple(rows.shape)}; expected {buffer.dtype} rows of "
            f"{buffer.shape[1]}."
        )
    if not rows.is_contiguous() or rows.stride(0) * rows.element_size() % ALIGNMENT_BYTES:
        raise ValueError(
            f"{what} have strides {rows.stride()} of {rows.dtype}; expected contiguous rows of a "
            f"multiple of {ALIGNMENT_BYTES} bytes."
        )
