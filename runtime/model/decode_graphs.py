"""CUDA graphs of decode steps, one per size of batch: a step is one small copy to the device and one launch.

Legend: B rows of a bucket, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RING_ENTRIES = 16
"""Steps whose columns may be on their way at once. More than are ever in flight, so that the host does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeOutput:
    """What a decode step leaves on the device, until the next one."""

    logits_BV: Tensor
    token_ids_B: Tensor
    """int32, the most likely tokens."""


DecodeStep = Callable[[Tensor], DecodeOutput]
"""Enqueues a decode step of the rows that the int64 columns [columns, B] describe."""


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Sizes of batch to capture, rising: a step is padded to the next one. The last is `max_rows`."""
    fine = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_rows, 32)]
    return (*(size for size in fine if size < max_rows), max_rows)


class DecodeGraphs:
    """Owns: the captured steps, their inputs and outputs, and the pinned memory that columns pass through."""

    def __init__(self, step: DecodeStep, padding: NDArray[np.int64], max_rows: int, device: torch.device) -> None:
        """Capture `step` for all buckets; `padding`: columns of `max_rows` rows that do no harm."""
        self._buckets = decode_buckets(max_rows)
        num_columns = len(padding)
        self._inputs = torch.from_numpy(padding.copy().reshape(-1)).to(device)
        self._ring = torch.empty(RING_ENTRIES, num_columns * max_rows, dtype=torch.int64, pin_memory=True)
        self._copied = [torch.cuda.Event() for _ in range(RING_ENTRIES)]
        self._num_replays = 0
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, DecodeOutput]] = {}
        memory = torch.cuda.graph_pool_handle()
        # Largest first: the smaller ones then fit into its memory.
        for bucket in reversed(self._buckets):
            columns = self._inputs[: num_columns * bucket].view(num_columns, bucket)
            columns.copy_(torch.from_numpy(np.ascontiguousarray(padding[:, :bucket])))
            self._graphs[bucket] = _capture(step, columns, memory)

    def bucket(self, num_rows: int) -> int:
        """The smallest captured size that holds so many rows."""
        return next(size for size in self._buckets if size >= num_rows)

    def replay(self, columns: NDArray[np.int64]) -> DecodeOutput:
        """Enqueue a step; `columns` has as many rows as one of the buckets."""
        entry = self._num_replays % RING_ENTRIES
        self._num_replays += 1
        self._copied[entry].synchronize()
        staged = self._ring[entry, : columns.size]
        staged.numpy()[:] = columns.reshape(-1)
        self._inputs[: columns.size].copy_(staged, non_blocking=True)
        self._copied[entry].record()
        graph, output = self._graphs[columns.shape[1]]
        graph.replay()
        return output


def _capture(step: DecodeStep, columns: Tensor, memory: Any) -> tuple[torch.cuda.CUDAGraph, DecodeOutput]:
    # A first run outside of the graph compiles kernels and lets libraries allocate.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(columns)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the process may use CUDA meanwhile.
    with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
        output = step(columns)
    return graph, output
