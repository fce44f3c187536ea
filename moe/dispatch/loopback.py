"""The dispatcher of a rank that has every expert itself: nothing is sent."""

from torch import Tensor

from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchSizes, Received


class LoopbackExchange:
    """Is `Exchange`: the rows that reach this rank are its own."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """See `Exchange`."""
        return self._received

    def send_back(self, out_NC: Tensor) -> None:
        """See `Exchange`."""
        self._out_TC = out_NC

    def combine(self) -> Tensor:
        """See `Exchange`."""
        assert self._out_TC is not None, "send_back comes first"
        return self._out_TC


class Loopback:
    """Is `Dispatcher`. Holds nothing, so that all layers and lanes may share one."""

    captured_forms = ALL_FORMS

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> LoopbackExchange:
        """See `Dispatcher`."""
        return LoopbackExchange(Received(x_TC, weights_TK, physical_ids_TK))

    def close(self) -> None:
        """See `Dispatcher`."""


LOOPBACK = Loopback()
