"""The time that steps take on a CUDA device."""

import torch


class CudaTimer:
    """A `StepTimer` on the current stream, which is what waits for loads, not the host."""

    def __init__(self) -> None:
        self._stretches: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began: torch.cuda.Event | None = None

    def begin(self) -> None:
        """Start to count time, as the rows come next."""
        self._began = _now()

    def pause(self) -> None:
        """Stop counting time, as a wait for a load comes next."""
        assert self._began is not None, "begin comes first"
        self._stretches.append((self._began, _now()))

    def resume(self) -> None:
        """Count time again, as the rows go on."""
        self.begin()

    def end(self) -> None:
        """Stop counting time, as the rows have been run or enqueued."""
        self.pause()

    def wait_s(self) -> float:
        """Wait for the rows; return the seconds that they took without the pauses."""
        self._stretches[-1][1].synchronize()
        return sum(began.elapsed_time(ended) for began, ended in self._stretches) / 1e3


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
