"""How large the buffers of symmetric dispatch are: known before any GPU is there.

Legend: as in `protocol`.
"""

import math

import torch

from raydix.kernels.dispatch.token_buffers import TokenLayout
from raydix.moe.dispatch.protocol import DispatchShape

NUM_SETS = 2
"""The number of sets of buffers, which is how many exchanges may be open at once."""
_PADDING_BYTES = 256


def layout_of(rank: int, shape: DispatchShape) -> TokenLayout:
    """Where this rank writes."""
    return TokenLayout(
        rank=rank,
        num_ranks=shape.num_ranks,
        max_tokens=max(shape.max_tokens, shape.max_low_latency_tokens),
        seats_per_rank=shape.seats_per_rank,
    )


def memory_bytes(shape: DispatchShape) -> int:
    """What the buffers of one rank take."""
    return NUM_SETS * sum(padded_bytes(*each) for each in buffer_tensors(shape).values())


def buffer_tensors(shape: DispatchShape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Sizes and dtypes of `TokenBuffers`."""
    most, choices = layout_of(0, shape).max_tokens, shape.experts_per_token
    num_rows, num_returned = shape.num_ranks * most, (shape.num_ranks - 1) * most
    return {
        "x_NC": ((num_rows, shape.sent_size), shape.sent_dtype),
        "weights_NK": ((num_rows, choices), torch.float32),
        "ids_NK": ((num_rows, choices), torch.int32),
        "origins_N": ((num_rows,), torch.int32),
        "returned_XC": ((num_returned, shape.hidden_size), shape.dtype),
        "tokens_arrived_R": ((shape.num_ranks,), torch.int32),
        "outputs_arrived_R": ((shape.num_ranks,), torch.int32),
    }


def padded_bytes(size: tuple[int, ...], dtype: torch.dtype) -> int:
    """What a tensor takes, so that the next one is aligned."""
    return -(-math.prod(size) * dtype.itemsize // _PADDING_BYTES) * _PADDING_BYTES
