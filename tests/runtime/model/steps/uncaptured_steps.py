"""Captured steps where there are no graphs: their columns and shapes on the cpu."""

from collections.abc import Sequence

import torch

from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.captured_steps import CapturedOutput, OnLayer
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_shapes import StepShape


class UncapturedSteps:
    """Stands in for `CapturedSteps` without graphs: the same columns, operation by operation."""

    def __init__(self, runner: ModelRunner) -> None:
        self._run = runner._columns.run
        self._cut = runner._columns.cut
        self._last: tuple[torch.Tensor, StepShape, CapturedOutput] | None = None
        self.shapes: Sequence[StepShape] = runner.captured_shapes()
        self.replayed: list[StepShape] = []

    def replay(
        self, columns: Column, shape: StepShape, on_layer: OnLayer | None = None
    ) -> CapturedOutput:
        assert on_layer is None or shape.waits_by_layer
        self.replayed.append(shape)
        with torch.inference_mode():
            packed = torch.from_numpy(columns)
            output = self._run(packed, shape, on_layer)
        self._last = (packed, shape, output)
        return output

    def replay_cut(self, shape: StepShape) -> None:
        assert self._last is not None
        assert shape == self._last[1]
        with torch.inference_mode():
            self._cut(*self._last)


def without_graphs(runner: ModelRunner) -> UncapturedSteps:
    """Let the runner take captured steps from now on."""
    steps = UncapturedSteps(runner)
    runner._captured = steps  # type: ignore[assignment]
    return steps
