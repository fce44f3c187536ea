"""A dispatcher whose rows travel as float8, whatever carries them.

Every row is rounded, also those whose experts are on their own rank, so that what a token's experts
say depends on the token alone, and not on where they are.

Legend: as in `protocol`.
"""

import torch
from torch import Tensor

from raydix.kernels.ops import ModelOps
from raydix.moe.dispatch.protocol import (
    Dispatcher,
    DispatchForm,
    DispatchShape,
    DispatchSizes,
    Exchange,
    Received,
)

_WARM_UP_TOKENS = (1, 128)
"""The numbers of tokens to warm up with: one for each variant of the kernels."""


class PackedDispatcher:
    """A `Dispatcher` that packs what another one carries, whose `DispatchShape` says so, too."""

    def __init__(
        self, carrier: Dispatcher, ops: ModelOps, shape: DispatchShape, device: torch.device
    ) -> None:
        self._carrier = carrier
        self._ops = ops
        self._shape = shape
        # So that no step waits for a compiler.
        for num_tokens in _WARM_UP_TOKENS:
            rows = torch.zeros(num_tokens, shape.hidden_size, dtype=shape.dtype, device=device)
            ops.restore_rows(ops.pack_rows(rows), shape.hidden_size, shape.dtype)

    @property
    def captured_forms(self) -> frozenset[DispatchForm]:
        """The forms that CUDA graphs may hold, as `Dispatcher.captured_forms` says."""
        return self._carrier.captured_forms

    @property
    def buffer_bytes(self) -> int:
        """What the carrier's buffers take, as `Dispatcher.buffer_bytes` says."""
        return self._carrier.buffer_bytes

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> "PackedExchange":
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        packed_TB = self._ops.pack_rows(x_TC)
        exchange = self._carrier.send(packed_TB, weights_TK, physical_ids_TK, sizes)
        return PackedExchange(exchange, self._ops, self._shape)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""
        self._carrier.close()


class PackedExchange:
    """An `Exchange` of packed rows."""

    def __init__(self, exchange: Exchange, ops: ModelOps, shape: DispatchShape) -> None:
        self._exchange = exchange
        self._ops = ops
        self._shape = shape

    def receive(self) -> Received:
        """Return the rows that have reached this rank, restored, as `Exchange.receive` says."""
        received = self._exchange.receive()
        shape = self._shape
        x_NC = self._ops.restore_rows(received.x_NC, shape.hidden_size, shape.dtype)
        return Received(x_NC, received.weights_NK, received.local_ids_NK)

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        self._exchange.send_back(out_NC)

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        return self._exchange.combine()
