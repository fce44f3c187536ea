"""Which steps go through the layers in two halves."""

from collections.abc import Sequence
from typing import Any, assert_never

from raydix.moe.overlap_gate import OverlapGate, StepTimes
from raydix.runtime.config.policies import Overlap


class Halving:
    """Which steps are halved; the same on all ranks."""

    def __init__(self, overlap: Overlap, times: Sequence[StepTimes] = ()) -> None:
        """`times`: as measured at the start; on the cpu nothing is."""
        self._overlap = overlap
        self._times = times
        self._gate = OverlapGate(times)

    def includes(self, num_tokens: int) -> bool:
        """Is a step halved whose busiest lane has so many tokens?"""
        match self._overlap:
            case Overlap.OFF:
                return False
            case Overlap.ON:
                return True
            case Overlap.AUTO:
                return self._gate.opens(num_tokens)
            case _:
                assert_never(self._overlap)

    def stats(self) -> list[dict[str, Any]]:
        """What was measured, and which of those steps would be halved."""
        return [
            {**figures(each), "is_halved": self.includes(each.num_tokens)} for each in self._times
        ]


def figures(times: StepTimes) -> dict[str, Any]:
    """The figures for people: milliseconds, and how much of what could be hidden was."""
    return {
        "tokens": times.num_tokens,
        "compute_ms": round(1e3 * times.compute_s, 3),
        "communication_ms": round(1e3 * times.communication_s, 3),
        "whole_ms": round(1e3 * times.whole_s, 3),
        "halved_ms": round(1e3 * times.halved_s, 3),
        "efficiency": round(times.efficiency, 3),
    }
