"""Which steps go through the layers in two halves."""

from dataclasses import dataclass
from typing import Any, assert_never

from raydix.moe.overlap_gate import StepTimes, gains
from raydix.runtime.config.policies import Overlap


@dataclass(frozen=True, slots=True)
class Halving:
    """Which steps are halved; the same on all ranks."""

    overlap: Overlap
    times: tuple[StepTimes, ...] = ()
    """As measured at the start; on the cpu nothing is."""

    def includes(self, num_tokens: int) -> bool:
        """Is a step halved whose busiest lane has so many tokens?"""
        match self.overlap:
            case Overlap.OFF:
                return False
            case Overlap.ON:
                return True
            case Overlap.AUTO:
                return gains(self.times, num_tokens)
            case _:
                assert_never(self.overlap)

    def stats(self) -> list[dict[str, Any]]:
        """What was measured, and which of those steps would be halved."""
        return [
            {**figures(each), "is_halved": self.includes(each.num_tokens)} for each in self.times
        ]


def figures(times: StepTimes) -> dict[str, Any]:
    """For people: milliseconds, and how much of what could be hidden was."""
    return {
        "tokens": times.num_tokens,
        "compute_ms": round(1e3 * times.compute_s, 3),
        "communication_ms": round(1e3 * times.communication_s, 3),
        "whole_ms": round(1e3 * times.whole_s, 3),
        "halved_ms": round(1e3 * times.halved_s, 3),
        "efficiency": round(times.efficiency, 3),
    }
