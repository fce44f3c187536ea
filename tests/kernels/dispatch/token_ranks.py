"""Ranks that exchange tokens within one process: their buffers are ordinary memory."""

import torch

from raydix.kernels.dispatch.token_buffers import Arrivals, TokenBuffers, TokenLayout


def layouts(num_ranks: int, max_tokens: int, seats_per_rank: int) -> list[TokenLayout]:
    """The layouts of all ranks."""
    return [
        TokenLayout(
            rank=rank, num_ranks=num_ranks, max_tokens=max_tokens, seats_per_rank=seats_per_rank
        )
        for rank in range(num_ranks)
    ]


def make_buffers(
    layout: TokenLayout, hidden: int, choices: int, dtype: torch.dtype, device: torch.device
) -> list[TokenBuffers]:
    """The buffers of all ranks. What nothing is written to holds 7."""
    num_ranks, num_rows = layout.num_ranks, layout.num_ranks * layout.max_tokens

    def filled(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, 7, dtype=dtype, device=device)

    return [
        TokenBuffers(
            x_NC=filled(num_rows, hidden, dtype=dtype),
            weights_NK=filled(num_rows, choices, dtype=torch.float32),
            ids_NK=filled(num_rows, choices, dtype=torch.int32),
            origins_N=filled(num_rows, dtype=torch.int32),
            returned_XC=filled(num_rows - layout.max_tokens, hidden, dtype=dtype),
            tokens_arrived_R=torch.zeros(num_ranks, dtype=torch.int32, device=device),
            outputs_arrived_R=torch.zeros(num_ranks, dtype=torch.int32, device=device),
        )
        for _ in range(num_ranks)
    ]


def make_arrivals(device: torch.device) -> Arrivals:
    """The arrivals of one rank."""
    given_up_1 = torch.zeros(1, dtype=torch.int32)
    return Arrivals(
        awaited_1=torch.zeros(1, dtype=torch.int32, device=device),
        given_up_1=given_up_1.pin_memory() if device.type == "cuda" else given_up_1,
    )
