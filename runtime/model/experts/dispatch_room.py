"""What is said of GPUs without room for the buffers of tokens on their way to other ranks."""

from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.symmetric_sizes import memory_bytes
from raydix.runtime.config.capacity import format_bytes

BUFFER_ADVICE = (
    "lower scheduler.chunked_prefill_tokens or scheduler.max_running_requests, by which the "
    "buffers of experts.dispatch grow, set experts.transport to fp8, or experts.dispatch to nccl"
)
"""What makes the buffers smaller, as a part of a sentence."""


def room_obstacle(shape: DispatchShape, free_bytes: int) -> str | None:
    """Why a GPU with so much free memory cannot hold the buffers; None if it can."""
    needed_bytes = memory_bytes(shape)
    if needed_bytes <= free_bytes:
        return None
    most = max(shape.max_tokens, shape.max_low_latency_tokens)
    return (
        f"the buffers of symmetric dispatch take {format_bytes(needed_bytes)} of each GPU, for "
        f"{most} tokens of each of {shape.num_ranks} ranks, and {format_bytes(free_bytes)} are "
        f"free; expected room for them, and then for weights and pages"
    )
