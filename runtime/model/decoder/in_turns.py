"""Batches go through the layers in turns: what one sends travels while the other computes.

A step is one batch, or two micro-batches A and B. In each layer all of them start, then all run
their experts. What ends a layer is done right before the next one starts:

    compute        finish A, start A | finish B, start B | experts A         | experts B
    on their way   B, from experts   | A, to experts     | B, to experts     | A, from experts

Legend: T tokens of a batch, C hidden.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.decoder.attention import AttentionBatch


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

    def finish(self) -> Tensor:
        """The feed-forward's output [T, C], which the next norm is to add to the residual."""


class Layer(Protocol):
    """A layer that can be run in stages, as `DecoderLayer` is."""

    def start(
        self,
        x_TC: Tensor | None,
        residual_TC: Tensor,
        batch: AttentionBatch,
        before_cache: Callable[[], None] | None,
        sent: SentRows | None,
    ) -> LayerStages:
        """Run the layer up to where its rows are sent to their experts."""


def run_in_turns(
    layers: Sequence[Layer],
    batches: Sequence[MicroBatch],
    residuals: Sequence[Tensor],
    on_layer: Callable[[int], None] | None,
) -> list[Tensor]:
    """What the last layer returns for each batch; each residual is added to in place.

    Attention of the first batch precedes that of the second in every layer, so that the second may
    read keys and values that the first has written. For `on_layer` see `Decoder`.
    """
    travellers = [
        _Traveller(batch, residual_TC)
        for batch, residual_TC in zip(batches, residuals, strict=True)
    ]
    for index, layer in enumerate(layers):
        before_cache = None if on_layer is None else partial(on_layer, index)
        for each in travellers:
            each.start(layer, before_cache)
        for each in travellers:
            each.run_experts()
    return [each.finish() for each in travellers]


class _Traveller:
    """Owns: where one batch is. What a layer leaves is there once, and is taken once."""

    def __init__(self, batch: MicroBatch, residual_TC: Tensor) -> None:
        self._batch = batch
        self._residual_TC = residual_TC
        self._in_flight: LayerStages | None = None

    def start(self, layer: Layer, before_cache: Callable[[], None] | None) -> None:
        """Finish the layer before, if there was one, and start this one."""
        x_TC = None if self._in_flight is None else self.finish()
        assert self._in_flight is None, "a batch is in one layer at a time"
        batch = self._batch
        self._in_flight = layer.start(
            x_TC, self._residual_TC, batch.attention, before_cache, batch.sent
        )

    def run_experts(self) -> None:
        assert self._in_flight is not None, "the layer has been started"
        self._in_flight.run_experts()

    def finish(self) -> Tensor:
        """Leave the layer, with nothing of it left behind."""
        in_flight, self._in_flight = self._in_flight, None
        assert in_flight is not None, "a decoder has layers"
        return in_flight.finish()
