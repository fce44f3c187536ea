"""The dispatcher of a rank that is pretended: what arrives has the right shapes, and no numbers."""

import torch
from torch import Tensor

from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchShape, DispatchSizes, Received


class ShapedExchange:
    """An `Exchange` in which as many rows reach this rank as all ranks send.

    So it is of Raydix's own dispatchers, which leave it to seat ids which rows are for nobody here.
    """

    def __init__(
        self, x_TC: Tensor, weights_TK: Tensor, num_rows: int, shape: DispatchShape
    ) -> None:
        self._x_TC = x_TC
        self._weights_TK = weights_TK
        self._num_rows = num_rows
        self._shape = shape

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        num_rows, choices = self._num_rows, self._weights_TK.shape[1]
        return Received(
            self._x_TC.new_empty(num_rows, self._shape.sent_size),
            self._weights_TK.new_empty(num_rows, choices),
            self._weights_TK.new_empty((num_rows, choices), dtype=torch.int32),
        )

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        shape = self._shape
        return self._x_TC.new_empty((self._x_TC.shape[0], shape.hidden_size), dtype=shape.dtype)


class ShapedDispatcher:
    """A `Dispatcher` that sends nothing, for tensors of shapes alone."""

    captured_forms = ALL_FORMS
    buffer_bytes = 0

    def __init__(self, shape: DispatchShape) -> None:
        self._shape = shape

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> ShapedExchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        return ShapedExchange(x_TC, weights_TK, sum(sizes.tokens_R), self._shape)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""
