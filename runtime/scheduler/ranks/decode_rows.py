"""Rows of requests that decode, one token each, which ranks may repeat."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.messages.arrays import Int32Array, empty


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """The decode rows of one step, one token each: whose each row is, and at what position."""

    slots: Int32Array
    stamps: NDArray[np.int64]
    starts: Int32Array
    """The position, in its request, of the token that each row computes."""
    output_positions: Int32Array
    repeats: Int32Array = field(default_factory=empty)
    """The number of further steps in which each row goes on, as in `StepPlan.row_repeats`."""

    @property
    def num_repeats(self) -> int:
        """The most steps in which some row goes on."""
        return int(self.repeats.max()) if len(self.repeats) else 0

    def repetition(self, number: int) -> "DecodeRows":
        """The rows that go on in the repetition of this number, counted from 1.

        They are told as they were in the plan's own step: each is so many tokens further.
        """
        goes_on = self.repeats >= number
        # Most go on, and most plans are cut short: nothing is copied for them.
        if goes_on.all():
            return self
        return DecodeRows(
            slots=self.slots[goes_on],
            stamps=self.stamps[goes_on],
            starts=self.starts[goes_on],
            output_positions=self.output_positions[goes_on],
            repeats=self.repeats[goes_on],
        )
