"""Whether a step gains by going through the layers as two micro-batches.

While one half computes, the tokens of the other travel, so that a step of compute time C and
communication time X takes no less than max(C, X) instead of C + X. But each half reads the weights
of the experts that it hits, waits for its own kernels to start, and shares the device with what
carries the other. Small steps lose by it.

What was measured is refuted when the ranks start again, and not before: ranks agree on nothing
while they step, and what a gate is wrong by is at most what it would have gained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MIN_GAIN = 0.05
"""By which halves must be faster. On two H200 steps of 512 to 8192 tokens gained up to 0.14 in one
start and nothing in the next; with what was taken for a gain, prompts took 1.06 of their time
(2026-11-22).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long steps take in which each lane has so many tokens."""

    num_tokens: int
    whole_s: float
    """As one batch: C + X."""
    communication_s: float
    """X: the exchanges of all layers, with nothing beside them."""
    halved_s: float
    """As two micro-batches."""

    @property
    def compute_s(self) -> float:
        """C."""
        return max(self.whole_s - self.communication_s, 0.0)

    @property
    def efficiency(self) -> float:
        """The part that was hidden of what could be; below 0 if halves lose."""
        hideable_s = min(self.compute_s, self.communication_s)
        return (self.whole_s - self.halved_s) / hideable_s if hideable_s else 0.0


def slowest(of_ranks: Sequence[Sequence[StepTimes]]) -> tuple[StepTimes, ...]:
    """What all ranks go by: each time that of the rank that took longest."""
    return tuple(
        StepTimes(
            num_tokens=times[0].num_tokens,
            whole_s=max(each.whole_s for each in times),
            communication_s=max(each.communication_s for each in times),
            halved_s=max(each.halved_s for each in times),
        )
        for times in zip(*of_ranks, strict=True)
    )


class OverlapGate:
    """Which steps gain by two halves: those from a size on, from which all measured ones did.

    A single size may seem to gain where it does not: small steps are mostly launches, whose times
    scatter. What a size gains, larger ones gain more of.
    """

    def __init__(self, times: Sequence[StepTimes]) -> None:
        """`times`: by rising number of tokens."""
        self._first_tokens: int | None = None
        for each in reversed(times):
            if each.halved_s > (1 - MIN_GAIN) * each.whole_s:
                break
            self._first_tokens = each.num_tokens

    def opens(self, num_tokens: int) -> bool:
        """Is a step faster in halves, if its busiest lane has so many tokens?"""
        return self._first_tokens is not None and num_tokens >= self._first_tokens
