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
"""The fraction of time that halves must save. Steps of 512 to 8192 tokens on two H200 seemed to
gain up to 0.14 after one start and nothing after the next; what was taken for a gain made prompts
take 1.06 of their time (2026-11-22).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long steps take in which each lane has so many tokens."""

    num_tokens: int
    whole_s: float
    """The time of the step as one batch: C + X."""
    communication_s: float
    """X: the time of all layers' exchanges, with nothing beside them."""
    halved_s: float
    """The time of the step as two micro-batches."""

    @property
    def compute_s(self) -> float:
        """C: the time of computing the whole step."""
        return max(self.whole_s - self.communication_s, 0.0)

    @property
    def efficiency(self) -> float:
        """The part that was hidden of what could be; below 0 if halves lose."""
        hideable_s = min(self.compute_s, self.communication_s)
        return (self.whole_s - self.halved_s) / hideable_s if hideable_s else 0.0


def slowest(of_ranks: Sequence[Sequence[StepTimes]]) -> tuple[StepTimes, ...]:
    """The largest of each time over all ranks, by which they all decide."""
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
