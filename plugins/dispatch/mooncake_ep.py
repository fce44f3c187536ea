"""Dispatch by Mooncake EP: DeepEP's low-latency kernels, between GPUs of one host by NVLink.

With release 0.3.13.post1 a combine now and then takes the experts of another exchange's tokens, if
that exchange was dispatched through the same buffer after its own dispatch: one of twelve pairs
on two H200, by the library's calls alone (`tests/plugins/dispatch/mooncake_alone.py`), and none of
thousands of exchanges that had a buffer to themselves. So each open exchange has one; and prompts,
whose many parts would want too many buffers, travel by NCCL.
"""

import importlib
import sys
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from raydix.moe.dispatch.nccl import NcclDispatcher
from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.store_group import StoreGroup
from raydix.plugins.dispatch.expert_major import (
    BufferPerExchange,
    ExpertMajor,
    Landed,
    expert_major_obstacle,
    low_latency_tokens,
)

_MOST_OPEN = 2
_FOREVER_US = -1
"""The value for no time limit: a limit would silently leave out the tokens of a late rank."""


def mooncake_ep_obstacle(shape: DispatchShape) -> str | None:
    """Why the kernels cannot serve this; None if they can."""
    if shape.max_low_latency_tokens == 0:
        return "it serves the low-latency form alone, which no step of this engine takes"
    num_experts = shape.num_ranks * shape.seats_per_rank
    # Rows follow two words of each expert, and are moved 16 bytes at a time: the device would fail.
    if num_experts % 2:
        return f"all ranks together must have an even number of experts, here are {num_experts}"
    return expert_major_obstacle(shape)


def connect_mooncake_ep(
    store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> ExpertMajor:
    """Wait for every rank. The calling thread is on `device`, this rank's."""
    # The package's own `mooncake.ep` would load its process groups, too, of one torch release
    # each, which nothing here uses.
    kernels = importlib.import_module("mooncake._ep")
    sys.modules.setdefault("mooncake.ep", kernels)
    library = importlib.import_module("mooncake.mooncake_ep_buffer")

    max_tokens = low_latency_tokens(shape)
    num_experts = shape.num_ranks * shape.seats_per_rank
    num_bytes = int(
        kernels.get_ep_buffer_size_hint(max_tokens, shape.hidden_size, shape.num_ranks, num_experts)
    )

    def open_buffer(name: str) -> MooncakeEpBuffer:
        group = StoreGroup(name, store, rank, shape.num_ranks)
        with warnings.catch_warnings():
            # That ranks of another process group than Mooncake's own all count as alive.
            warnings.simplefilter("ignore", RuntimeWarning)
            buffer = library.Buffer(group, num_bytes)
        is_slow = not buffer.runtime.use_fast_path()
        group.agree("mooncake_ep", "it found no NVLink between the GPUs" if is_slow else None)
        return MooncakeEpBuffer(buffer, shape, max_tokens, device)

    buffers = [open_buffer(f"mooncake {number}") for number in range(_MOST_OPEN)]
    normal = NcclDispatcher(PrefixStore("mooncake normal", store), rank, shape, device)
    return ExpertMajor(
        shape,
        normal,
        BufferPerExchange(buffers),
        device,
        buffer_bytes=len(buffers) * num_bytes,
    )


class MooncakeEpBuffer:
    """An `ExpertMajorBuffer` by Mooncake EP."""

    def __init__(
        self, buffer: Any, shape: DispatchShape, max_tokens: int, device: torch.device
    ) -> None:
        self._buffer = buffer
        self._num_experts = shape.num_ranks * shape.seats_per_rank
        self._is_alive_R = torch.ones(shape.num_ranks, dtype=torch.int32, device=device)
        self.max_tokens = max_tokens

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        """Send tokens to the ranks of their experts, as `ExpertMajorBuffer.dispatch` says."""
        x_SPC, num_rows_S, handle, _, _ = self._buffer.dispatch(
            x_TC,
            ids_TK,
            self._is_alive_R,
            self.max_tokens,
            self._num_experts,
            _FOREVER_US,
            use_fp8=False,
        )
        return Landed(x_SPC, num_rows_S, handle)

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        """Return each token's sum over its experts, as `ExpertMajorBuffer.combine` says."""
        out_TC, _, _ = self._buffer.combine(
            out_SPC, ids_TK, weights_TK, self._is_alive_R, _FOREVER_US, handle
        )
        return out_TC
