"""Small copies between host and device, by kernels that read and write pinned memory.

A copy engine carries out its copies in order of arrival, whatever their streams: on an H200
(2026-11-21) 64 KiB of a step's columns waited 10 ms for the pieces of a load enqueued before. So a
step leaves the copy engines to the pages.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from raydix.runtime.model.staging.columns import Column, Columns, Layout
from raydix.runtime.model.staging.lent_memory import lent

_RING_ENTRIES = 16
"""More than are ever on their way: a GPU actor has half as many steps in flight."""


class PinnedRing:
    """Owns: pinned memory through which columns of a bounded size reach the device, in turns.

    Nothing is allocated on the way, and there is nothing to look up. On the cpu nothing is copied.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        """`size`: the most numbers at a time."""
        self._size = size
        self._num_lent = 0
        self._device = device
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            with torch.cuda.device(device):
                self._pinned = torch.empty(_RING_ENTRIES, size, dtype=torch.int64, pin_memory=True)
                self._on_device = on_device(self._pinned).unbind()
                self._used = [torch.cuda.Event() for _ in range(_RING_ENTRIES)]
            self._on_host = self._pinned.numpy()

    @contextmanager
    def lend(self, column: Column) -> Iterator[Tensor]:
        """The numbers as the device reads them, for kernels that are enqueued meanwhile.

        Raises ValueError if there are more than the ring is for.
        """
        if len(column) > self._size:
            raise ValueError(f"A column has {len(column)} numbers; expected at most {self._size}.")
        if not self._is_cuda:
            yield torch.from_numpy(column).to(self._device)
            return
        entry = self._num_lent % _RING_ENTRIES
        self._num_lent += 1
        self._used[entry].synchronize()
        self._on_host[entry, : len(column)] = column
        try:
            yield self._on_device[entry][: len(column)]
        finally:
            self._used[entry].record()


class PinnedCopies:
    """Owns: the pinned memory that kernels on the current stream may still read or write.

    Nothing here waits for them. On the cpu nothing is copied but columns into one another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._in_use: deque[tuple[torch.cuda.Event, Tensor]] = deque()

    def to_device(self, *tables: Columns) -> list[dict[str, Tensor]]:
        """Enqueue a copy of the columns of some tables, in one kernel for all."""
        layouts = [Layout.of(table) for table in tables]
        columns = [layout.pack(table) for layout, table in zip(layouts, tables, strict=True)]
        packed = torch.from_numpy(np.concatenate(columns))
        if self._device.type == "cuda":
            pinned = packed.pin_memory()
            # A plain copy would take a copy engine.
            packed = torch.add(on_device(pinned), 0)
            self._keep(pinned)
        else:
            packed = packed.to(self._device)
        parts = packed.split([layout.size for layout in layouts])
        return [layout.split(part) for layout, part in zip(layouts, parts, strict=True)]

    def to_host(self, tensor: Tensor) -> Tensor:
        """Enqueue a copy to pinned memory; a tensor on the cpu is returned as it is."""
        if tensor.device.type != "cuda":
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        torch.add(tensor, 0, out=on_device(pinned))
        self._keep(pinned)
        return pinned

    def note_end(self) -> torch.cuda.Event | None:
        """An event behind all that was enqueued so far; None on the cpu."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _keep(self, pinned: Tensor) -> None:
        """Keep the memory until the kernel just enqueued has ended."""
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()
        ended = torch.cuda.Event()
        ended.record()
        self._in_use.append((ended, pinned))


def on_device(pinned: Tensor) -> Tensor:
    """The same memory as a tensor of the current CUDA device, which reaches it over the bus.

    `pinned` has to outlive it.
    """
    # Whichever device was current when the memory was pinned: an array interface would copy what
    # another thread pinned for its own, and results would be written into the copy.
    return lent(pinned, torch.device("cuda", torch.cuda.current_device()))
