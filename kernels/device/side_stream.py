"""Kernels beside those of the current stream."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Owns: a stream of high priority. Devices other than GPUs have none, and run all in order."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is enqueued meanwhile waits for what came before, and for nothing until `join`."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let what comes on the current stream wait for all that was enqueued beside it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
