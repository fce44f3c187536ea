"""A dispatcher that takes, for each exchange, the backend that is fastest for its size."""

from collections.abc import Mapping

from torch import Tensor

from raydix.moe.dispatch.choose import fastest
from raydix.moe.dispatch.protocol import ALL_FORMS, Dispatcher, DispatchSizes, Exchange


class FastestDispatcher:
    """A `Dispatcher` that takes the fastest of several. All ranks choose alike: by the sizes alone.

    Owns: the dispatchers, by the names of their backends; all ranks have the same ones.
    """

    def __init__(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        self._dispatchers = dispatchers
        self.captured_forms = ALL_FORMS.intersection(
            *(each.captured_forms for each in dispatchers.values())
        )

    @property
    def buffer_bytes(self) -> int:
        """What the buffers of all take, as `Dispatcher.buffer_bytes` says."""
        return sum(each.buffer_bytes for each in self._dispatchers.values())

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        tokens_R = sizes.tokens_R
        name = fastest(sizes.form, max(tokens_R), self._dispatchers, len(tokens_R))
        return self._dispatchers[name].send(x_TC, weights_TK, physical_ids_TK, sizes)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""
        for each in self._dispatchers.values():
            each.close()
