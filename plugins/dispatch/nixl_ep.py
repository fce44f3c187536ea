"""Dispatch by NIXL-EP: DeepEP's low-latency kernels over UCX; within a host, over NVLink."""

import os
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.store_group import StoreGroup
from raydix.plugins.dispatch.expert_major import (
    ExpertMajor,
    InParts,
    Landed,
    low_latency_tokens,
    part_tokens,
)

_TIMEOUT_MS = 24 * 60 * 60 * 1000
"""The time after which the kernels silently leave out a rank's tokens: so long that the Supervisor
notices a late rank much earlier.
"""
_TRANSPORTS = "cuda_ipc,cuda_copy,sm,self"
"""The transports of UCX within a host: others would listen on its network cards."""


def connect_nixl_ep(
    store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> ExpertMajor:
    """Wait for every rank. The calling thread is on `device`, this rank's."""
    # Read when a context is made.
    os.environ.setdefault("UCX_TLS", _TRANSPORTS)
    import nixl_ep

    def bytes_of(max_tokens: int) -> int:
        num_experts = shape.num_ranks * shape.seats_per_rank
        return int(
            nixl_ep.Buffer.get_low_latency_buffer_size_hint(
                max_tokens, shape.hidden_size, shape.num_ranks, num_experts
            )
        )

    def open_buffer(name: str, max_tokens: int) -> NixlEpBuffer:
        group = StoreGroup(name, store, rank, shape.num_ranks)
        buffer = nixl_ep.Buffer(
            rank=rank, tcp_store_group=group, timeout_ms=_TIMEOUT_MS, explicitly_destroy=True
        )
        buffer.update_memory_buffers(shape.num_ranks, shape.seats_per_rank, bytes_of(max_tokens))
        buffer.connect_ranks(list(range(shape.num_ranks)))
        group.swap(None)
        return NixlEpBuffer(buffer, shape, max_tokens)

    num_tokens = part_tokens(shape, bytes_of)
    normal = InParts(shape, open_buffer("nixl normal", num_tokens))
    buffer_bytes, low_latency = bytes_of(num_tokens), None
    if shape.max_low_latency_tokens > 0:
        num_tokens = low_latency_tokens(shape)
        low_latency = open_buffer("nixl low latency", num_tokens)
        buffer_bytes += bytes_of(num_tokens)
    return ExpertMajor(shape, normal, low_latency, device, buffer_bytes=buffer_bytes)


class NixlEpBuffer:
    """An `ExpertMajorBuffer` by NIXL-EP."""

    def __init__(self, buffer: Any, shape: DispatchShape, max_tokens: int) -> None:
        self._buffer = buffer
        self._num_experts = shape.num_ranks * shape.seats_per_rank
        self.max_tokens = max_tokens

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        """Send tokens to the ranks of their experts, as `ExpertMajorBuffer.dispatch` says."""
        x_SPC, num_rows_S, handle, _, _ = self._buffer.dispatch(
            x_TC, ids_TK, self.max_tokens, self._num_experts, use_fp8=False
        )
        return Landed(x_SPC, num_rows_S, handle)

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        """Return each token's sum over its experts, as `ExpertMajorBuffer.combine` says."""
        out_TC, _, _ = self._buffer.combine(out_SPC, ids_TK, weights_TK, handle)
        return out_TC
