"""Rows travel on a stream of their own, while the current one computes.

Whatever the communication stream reads or writes is ordered by events alone, and so is the memory
of it: the caching allocator hands a freed block out to the stream that it was allocated for. A
block of the current stream is kept until that one has waited for its reader; one of the
communication stream is handed out within `send` and `send_back` alone, which begin with a wait for
all that the current stream has been given so far.
"""

import torch
from torch import Tensor

from raydix.moe.dispatch.protocol import Dispatcher, DispatchSizes, Exchange, Received


class StreamedExchange:
    """An `Exchange` on two streams, so that a wait for rows never holds up those sent after them.

    What sends runs on `stream`, what waits and adds up on the current one.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        stream: torch.cuda.Stream,
        *,
        x_TC: Tensor,
        weights_TK: Tensor,
        physical_ids_TK: Tensor,
        sizes: DispatchSizes,
    ) -> None:
        """Start the dispatch."""
        self._stream = stream
        self._kept: tuple[Tensor, ...] = (x_TC, weights_TK, physical_ids_TK)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._exchange: Exchange = dispatcher.send(x_TC, weights_TK, physical_ids_TK, sizes)
            self._sent = stream.record_event()

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        self._wait()
        return self._exchange.receive()

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        self._kept = (out_NC,)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._exchange.send_back(out_NC)
            self._sent = self._stream.record_event()

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        self._wait()
        return self._exchange.combine()

    def _wait(self) -> None:
        """Let the current stream wait until what it was asked to send has been read."""
        torch.cuda.current_stream().wait_event(self._sent)
        self._kept = ()
