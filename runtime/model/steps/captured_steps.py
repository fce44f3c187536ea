"""CUDA graphs of steps: such a step is one small copy to the device and one launch, or one by layer
where each waits for its own part of what is on its way to the cache.

Legend: R sampling rows of a shape, T its tokens, V vocabulary, C hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from raydix.runtime.garbage import garbage_kept
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.staging.lent_memory import lent
from raydix.runtime.model.staging.pinned_copies import PinnedRing
from raydix.runtime.model.steps.step_shapes import StepShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapturedOutput:
    """What a captured step leaves on the device, until the next one."""

    hidden_TC: Tensor
    """The hidden states of all its tokens."""
    logits_RV: Tensor
    token_ids_R: Tensor
    """int32, the sampled tokens; for rows that cut, until those are sampled, the most likely."""

    def lent(self) -> "CapturedOutput":
        """The same memory, which these tensors do not keep from being used otherwise."""
        return CapturedOutput(
            hidden_TC=lent(self.hidden_TC),
            logits_RV=lent(self.logits_RV),
            token_ids_R=lent(self.token_ids_R),
        )


OnLayer = Callable[[int], None]
"""Called before a layer touches the KV pool; see `Decoder`."""


class RunColumns(Protocol):
    """Enqueues the step that packed columns describe."""

    def __call__(
        self, packed: Tensor, shape: StepShape, on_layer: OnLayer | None = None, /
    ) -> CapturedOutput:
        """`on_layer`: see `Decoder`."""


CutColumns = Callable[[Tensor, StepShape, CapturedOutput], None]
"""Enqueues the sampling of its rows that cut tokens, which replaces their tokens."""


class CapturedSteps:
    """Owns: the captured steps, their inputs and outputs."""

    def __init__(
        self,
        run: RunColumns,
        cut: CutColumns,
        *,
        padding: Callable[[StepShape], Column],
        shapes: Sequence[StepShape],
        device: torch.device,
    ) -> None:
        """Capture `run` and `cut` for all shapes. `padding`: packed columns that do no harm.

        The two are apart because the search for a cut is a dozen launches, without which most steps
        do.
        """
        self.shapes = shapes
        largest = max(shape.layout.size for shape in shapes)
        self._inputs = torch.zeros(largest, dtype=torch.int64, device=device)
        self._ring = PinnedRing(largest, device)
        self._graphs: dict[StepShape, tuple[list[torch.cuda.CUDAGraph], CapturedOutput]] = {}
        self._cut_graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        capture = _Capture()
        # A graph that is collected meanwhile calls CUDA, which ends the capture with an error.
        with garbage_kept():
            # Largest first: the smaller ones then fit into its memory.
            for shape in sorted(shapes, key=lambda shape: -shape.num_tokens):
                columns = self._inputs[: shape.layout.size]
                columns.copy_(torch.from_numpy(padding(shape)))
                pieces, output = capture(
                    partial(run, columns, shape)
                    if shape.waits_by_layer
                    else _whole(run, columns, shape)
                )
                self._graphs[shape] = pieces, output
                # Capturing computes nothing, but `cut` reads the tokens that the step leaves.
                for piece in pieces:
                    piece.replay()
                cut_step = partial(cut, columns, shape, output)
                [self._cut_graphs[shape]], _ = capture(_whole(cut_step))
                # From here on steps of other shapes may use that memory, too: none reads what one
                # before has left.
                self._graphs[shape] = pieces, output.lent()
        # What the first runs took belongs to the stream of captures, and no step can use it.
        torch.cuda.empty_cache()

    def replay(
        self, columns: Column, shape: StepShape, on_layer: OnLayer | None = None
    ) -> CapturedOutput:
        """Enqueue the step that the packed columns describe.

        `on_layer`: see `Decoder`; only for a shape that waits by layer.
        """
        with self._ring.lend(columns) as staged:
            # See `pinned_copies`: a plain copy would queue.
            torch.add(staged, 0, out=self._inputs[: columns.size])

        (first, *others), output = self._graphs[shape]
        first.replay()
        for layer, piece in enumerate(others):
            if on_layer is not None:
                on_layer(layer)
            piece.replay()
        return output

    def replay_cut(self, shape: StepShape) -> None:
        """Enqueue the sampling of rows that cut, of the last replayed step of this shape."""
        self._cut_graphs[shape].replay()


def _whole(run: Callable[..., T], *arguments: Any) -> Callable[[OnLayer], T]:
    """What is captured in one graph."""
    return lambda _: run(*arguments)


class _Capture:
    """Captures what is enqueued. All graphs share their memory, and the stream of their capture."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[OnLayer], T]) -> tuple[list[torch.cuda.CUDAGraph], T]:
        """Capture what `run` enqueues, in pieces that end where it calls `on_layer`."""
        stream = self._stream
        # A first run outside of the graph compiles kernels and lets libraries allocate.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(lambda layer: None)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

        pieces: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            pieces.append(torch.cuda.CUDAGraph())
            # Other threads of the process may use CUDA meanwhile.
            pieces[-1].capture_begin(pool=self._memory, capture_error_mode="thread_local")

        def next_piece(layer: int) -> None:
            pieces[-1].capture_end()
            begin()

        with torch.cuda.stream(stream):
            begin()
            try:
                output = run(next_piece)
            finally:
                pieces[-1].capture_end()
        return pieces, output
