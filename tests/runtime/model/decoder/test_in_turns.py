"""The order in which batches take their turns, on layers and exchanges that record it."""

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from raydix.kernels.ops import ReferenceOps
from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.decoder.attention import AttentionBatch
from raydix.runtime.model.decoder.in_turns import MicroBatch, run_in_turns
from raydix.runtime.model.decoder.residual_stream import ResidualStream
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import NormSpec

NUM_LAYERS = 3
NORM = RmsNorm(
    NormSpec(eps=1e-6), 1, ReferenceOps(), device=torch.device("cpu"), dtype=torch.float32
)


class Recorder:
    """Layers that add one to what they get, and check that each stage comes once and in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open: list[str] = []
        """Batches whose exchange is open, in the order in which they began."""
        self.most_open = 0

    def layer(self, index: int) -> "FakeLayer":
        return FakeLayer(self, index)


class FakeLayer:
    def __init__(self, recorder: Recorder, index: int) -> None:
        self._recorder = recorder
        self._index = index

    def start(
        self,
        stream: ResidualStream,
        batch: AttentionBatch,
        before_cache: Callable[[], None] | None,
        sent: SentRows | None,
    ) -> "FakeStages":
        name = cast(str, batch)
        if before_cache is not None:
            before_cache()
        return FakeStages(self._recorder, f"{name}{self._index}", stream)


class FakeStages:
    def __init__(self, recorder: Recorder, name: str, stream: ResidualStream) -> None:
        self._recorder = recorder
        self._name = name
        self._stream = stream
        self._left = ["finish", "run_experts"]
        self._record("start")
        recorder.open.append(name)
        recorder.most_open = max(recorder.most_open, len(recorder.open))

    def run_experts(self) -> None:
        assert self._left.pop() == "run_experts"
        self._record("experts")

    def finish(self) -> None:
        assert self._left.pop() == "finish"
        self._record("finish")
        assert self._recorder.open.pop(0) == self._name, "exchanges end as they began"
        self._stream.add(torch.ones(1, 1))
        self._stream.normed(NORM)

    def _record(self, stage: str) -> None:
        self._recorder.events.append(f"{stage} {self._name}")


def run_batches(
    recorder: Recorder, names: str, on_layer: Callable[[int], None] | None = None
) -> list[Tensor]:
    """What the streams of batches have added up."""
    batches = [
        MicroBatch(token_ids_T=torch.zeros(1), attention=cast(AttentionBatch, name), sent=None)
        for name in names
    ]
    sums = [torch.zeros(1, 1) for _ in names]
    layers = [recorder.layer(index) for index in range(NUM_LAYERS)]
    run_in_turns(layers, batches, [ResidualStream(sum_TC) for sum_TC in sums], on_layer)
    return sums


def test_one_computes_between_any_two_stages_of_the_other() -> None:
    recorder = Recorder()

    run_batches(recorder, "AB")

    assert recorder.events[:10] == [
        "start A0",
        "start B0",
        "experts A0",
        "experts B0",
        "finish A0",
        "start A1",
        "finish B0",
        "start B1",
        "experts A1",
        "experts B1",
    ]
    assert recorder.events[-2:] == ["finish A2", "finish B2"]


@pytest.mark.parametrize("names", ["A", "AB"])
def test_nothing_is_left_open_and_never_more_than_one_exchange_of_a_batch(names: str) -> None:
    recorder = Recorder()

    sums = run_batches(recorder, names)

    assert not recorder.open
    assert recorder.most_open == len(names)
    assert len(recorder.events) == len(set(recorder.events)) == 3 * NUM_LAYERS * len(names)
    assert [int(sum_TC) for sum_TC in sums] == [NUM_LAYERS] * len(names)


def test_both_halves_wait_for_what_a_layer_loads() -> None:
    recorder, waited = Recorder(), list[int]()

    def on_layer(layer: int) -> None:
        waited.append(layer)
        recorder.events.append(f"wait {layer}")

    run_batches(recorder, "AB", on_layer)

    assert waited == [layer for layer in range(NUM_LAYERS) for _ in "AB"]
    for index, event in enumerate(recorder.events):
        if event.startswith("start"):
            assert recorder.events[index - 1] == f"wait {event[-1]}"
