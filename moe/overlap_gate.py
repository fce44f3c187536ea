"""Whether a step gains by going through the layers as two micro-batches.

While one half computes, the tokens of the other travel, so that a step of compute time C and
communication time X takes no less than max(C, X) instead of C + X. But each half reads the weights
of the experts that it hits, waits for its own kernels to start, and shares the device with what
carries the other. Small steps lose by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_GAIN = 0.02
"""By which the prediction must be shorter: less is within what a measurement may be off."""


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


def gains(times: Sequence[StepTimes], num_tokens: int) -> bool:
    """Is a step faster in halves, if its busiest lane has so many tokens?

    `times`: by rising number of tokens. A step whose halves are smaller than anything measured
    stays whole; one that is larger than all goes by the largest.
    """
    if not times or num_tokens < 2 * times[0].num_tokens:
        return False
    num_tokens = min(num_tokens, times[-1].num_tokens)
    whole_s = _compute_s(times, num_tokens) + _communication_s(times, num_tokens)
    return predicted_halved_s(times, num_tokens) < (1 - MIN_GAIN) * whole_s


def predicted_halved_s(times: Sequence[StepTimes], num_tokens: float) -> float:
    """max(C', X') + overhead. C' and X' are those of both halves, which what was measured at half
    the tokens says; the overhead is what the steps that were measured took beyond that.
    """
    overheads_s = [each.halved_s - _ideal_s(times, each.num_tokens) for each in times]
    overhead_s = np.interp(num_tokens, [each.num_tokens for each in times], overheads_s)
    return _ideal_s(times, num_tokens) + float(overhead_s)


def _ideal_s(times: Sequence[StepTimes], num_tokens: float) -> float:
    half = num_tokens / 2
    return 2 * max(_compute_s(times, half), _communication_s(times, half))


def _compute_s(times: Sequence[StepTimes], num_tokens: float) -> float:
    tokens = [each.num_tokens for each in times]
    return float(np.interp(num_tokens, tokens, [each.compute_s for each in times]))


def _communication_s(times: Sequence[StepTimes], num_tokens: float) -> float:
    tokens = [each.num_tokens for each in times]
    return float(np.interp(num_tokens, tokens, [each.communication_s for each in times]))
