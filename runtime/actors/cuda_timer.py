"""The time that steps take on a CUDA device."""

import torch


class CudaTimer:
    """A `StepTimer` on the current stream, which is what waits for loads, not the host."""

    def __init__(self) -> None:
        self._stretches: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began: torch.cuda.Event | None = None

    def begin(self) -> None:
        """See `StepTimer`."""
        self._began = _now()

    def pause(self) -> None:
        """See `StepTimer`."""
        assert self._began is not None, "begin comes first"
        self._stretches.append((self._began, _now()))

    def resume(self) -> None:
        """See `StepTimer`."""
        self.begin()

    def end(self) -> None:
        """See `StepTimer`."""
        self.pause()

    def wait_s(self) -> float:
        """See `StepTimer`."""
        self._stretches[-1][1].synchronize()
        return sum(began.elapsed_time(ended) for began, ended in self._stretches) / 1e3


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
