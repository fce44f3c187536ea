"""Batches go through the layers in turns: what one sends travels while the other computes.

A step is one batch, or two micro-batches A and B. In each layer all of them start, then all run
their experts. What ends a layer is done right before the next one starts:

    compute        finish A, start A | finish B, start B | experts A         | experts B
    on their way   B, from experts   | A, to experts     | B, to experts     | A, from experts

Legend: T tokens of a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.decoder.attention import AttentionBatch
from raydix.runtime.model.decoder.residual_stream import ResidualStream


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows that go through the layers together."""

    token_ids_T: Tensor
    """The ids of the tokens, of any integer type."""
    attention: AttentionBatch
    sent: SentRows | None
    """The rows that each rank sends, as `MoeLayer` takes them."""


class LayerStages(Protocol):
    """A batch between the stages of a layer. See `LayerInFlight`."""

    def run_experts(self) -> None:
        """Compute what other ranks have sent here, and start sending it back."""

    def finish(self) -> None:
        """Add what the feed-forward says to the stream."""


class Layer(Protocol):
    """A layer that can be run in stages, as `DecoderLayer` is."""

    def start(
        self,
        stream: ResidualStream,
        batch: AttentionBatch,
        before_cache: Callable[[], None] | None,
        sent: SentRows | None,
    ) -> LayerStages:
        """Run the layer up to where its rows are sent to their experts."""


def run_in_turns(
    layers: Sequence[Layer],
    batches: Sequence[MicroBatch],
    streams: Sequence[ResidualStream],
    on_layer: Callable[[int], None] | None,
) -> None:
    """Add to the stream of each batch what all layers say.

    Attention of the first batch precedes that of the second in every layer, so that the second may
    read keys and values that the first has written. For `on_layer` see `Decoder`.
    """
    travellers = [_Traveller(batch, stream) for batch, stream in zip(batches, streams, strict=True)]
    for index, layer in enumerate(layers):
        before_cache = None if on_layer is None else partial(on_layer, index)
        for each in travellers:
            each.start(layer, before_cache)
        for each in travellers:
            each.run_experts()
    for each in travellers:
        each.finish()


class _Traveller:
    """Owns: in which layer one batch is."""

    def __init__(self, batch: MicroBatch, stream: ResidualStream) -> None:
        self._batch = batch
        self._stream = stream
        self._in_flight: LayerStages | None = None

    def start(self, layer: Layer, before_cache: Callable[[], None] | None) -> None:
        """Finish the layer before, if there was one, and start this one."""
        if self._in_flight is not None:
            self.finish()
        batch = self._batch
        self._in_flight = layer.start(self._stream, batch.attention, before_cache, batch.sent)

    def run_experts(self) -> None:
        assert self._in_flight is not None, "the layer has been started"
        self._in_flight.run_experts()

    def finish(self) -> None:
        """Leave the layer, with nothing of it left behind."""
        in_flight, self._in_flight = self._in_flight, None
        assert in_flight is not None, "a decoder has layers"
        in_flight.finish()
