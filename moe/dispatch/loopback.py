"""The dispatcher of a rank that has every expert itself: nothing is sent."""

from torch import Tensor

from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchSizes, Received


class LoopbackExchange:
    """An `Exchange` of one rank: the rows that reach it are its own."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        return self._received

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        self._out_TC = out_NC

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_TC is not None, "send_back comes first"
        return self._out_TC


class Loopback:
    """A `Dispatcher` of one rank. It holds nothing, so that all layers and lanes may share one."""

    captured_forms = ALL_FORMS
    buffer_bytes = 0

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> LoopbackExchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        return LoopbackExchange(Received(x_TC, weights_TK, physical_ids_TK))

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""


LOOPBACK = Loopback()
