"""Whether a step gains by going through the layers as two micro-batches.

While one half computes, the tokens of the other travel, so that a step of compute time C and
communication time X takes no less than max(C, X) instead of C + X. But each half reads the weights
of the experts that it hits, waits for its own kernels to start, and shares the device with what
carries the other. Small steps lose by it.

Legend: X numbers of tokens that were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


class OverlapGate:
    """Which steps gain by two halves, as far as the measured ones tell.

    Between two of these, times are on a straight line.
    """

    def __init__(self, times: Sequence[StepTimes]) -> None:
        """`times`: by rising number of tokens."""
        self._tokens_X = np.array([each.num_tokens for each in times], dtype=np.float64)
        self._compute_X = np.array([each.compute_s for each in times])
        self._communication_X = np.array([each.communication_s for each in times])
        # What halves took beyond the ideal.
        self._overhead_X = np.array(
            [each.halved_s - self._ideal_s(each.num_tokens) for each in times]
        )

    def opens(self, num_tokens: int) -> bool:
        """Is a step faster in halves, if its busiest lane has so many tokens?

        One whose halves are smaller than anything measured stays whole; one that is larger than
        all goes by the largest.
        """
        if not len(self._tokens_X) or num_tokens < 2 * self._tokens_X[0]:
            return False
        tokens = min(float(num_tokens), self._tokens_X[-1])
        whole_s = self._at(tokens, self._compute_X) + self._at(tokens, self._communication_X)
        return self.predicted_halved_s(tokens) < (1 - MIN_GAIN) * whole_s

    def predicted_halved_s(self, num_tokens: float) -> float:
        """max(C', X') + overhead. C' and X' are twice those of half the tokens."""
        return self._ideal_s(num_tokens) + self._at(num_tokens, self._overhead_X)

    def _ideal_s(self, num_tokens: float) -> float:
        half = num_tokens / 2
        return 2 * max(self._at(half, self._compute_X), self._at(half, self._communication_X))

    def _at(self, num_tokens: float, times_X: NDArray[np.float64]) -> float:
        return float(np.interp(num_tokens, self._tokens_X, times_X))
