"""A dispatcher without other ranks that keeps what it is asked for."""

from torch import Tensor

from raydix.moe.dispatch.protocol import DispatchForm, DispatchSizes, Received


class RecordingDispatcher:
    """A `Dispatcher` that records. Every row comes back as it is sent; no expert is reached."""

    captured_forms: frozenset[DispatchForm] = frozenset()
    buffer_bytes = 0

    def __init__(self) -> None:
        self.sizes: list[DispatchSizes] = []
        self.ids: list[Tensor] = []
        self.num_open = 0

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> "RecordedExchange":
        assert self.num_open < 2, "a dispatcher has two sets of buffers"
        self.num_open += 1
        self.sizes.append(sizes)
        self.ids.append(physical_ids_TK)
        nowhere_TK = physical_ids_TK.new_full(physical_ids_TK.shape, -1)
        return RecordedExchange(self, Received(x_TC, weights_TK, nowhere_TK))

    def close(self) -> None:
        pass

    def end(self) -> None:
        self.num_open -= 1


class RecordedExchange:
    """An `Exchange` that is recorded. Each stage comes once, in its order."""

    def __init__(self, dispatcher: RecordingDispatcher, received: Received) -> None:
        self._dispatcher = dispatcher
        self._received = received
        self._stages = ["combine", "send_back", "receive"]
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        assert self._stages.pop() == "receive"
        return self._received

    def send_back(self, out_NC: Tensor) -> None:
        assert self._stages.pop() == "send_back"
        self._out_TC = out_NC

    def combine(self) -> Tensor:
        assert self._stages.pop() == "combine"
        assert self._out_TC is not None
        self._dispatcher.end()
        return self._out_TC
