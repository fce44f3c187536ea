"""A step's tokens in two halves, which go through the layers in turns.

Each lane is cut after half of its tokens, rounded up, and a row in which the cut falls is cut with
it: the second half attends to the keys and values that the first has just written. Cuts between
rows would spare that, but every rank has to know how many rows the others send in each half, and
plans tell no more of other lanes than their tokens. Halves are even besides, however long a row is.
"""

from collections.abc import Sequence

import numpy as np

from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.step_rows import StepRows


def halves(tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many of each lane's tokens are in the first half, and in the second."""
    first = tuple(-(-each // 2) for each in tokens)
    return first, tuple(each - half for each, half in zip(tokens, first, strict=True))


def split_rows(rows: StepRows, num_first: int) -> tuple[StepRows, StepRows]:
    """The rows of the first `num_first` tokens, and the others.

    A row that is cut samples in the second half, so that those which sample keep their order.
    """
    in_first = np.clip(num_first - rows.first_tokens, 0, rows.num_tokens)
    in_second = rows.num_tokens - in_first
    return (
        _some(
            rows,
            starts=rows.starts,
            num_tokens=in_first,
            output_positions=np.where(in_second > 0, -1, rows.output_positions),
        ),
        _some(
            rows,
            starts=rows.starts + in_first,
            num_tokens=in_second,
            output_positions=rows.output_positions,
        ),
    )


def _some(
    rows: StepRows, *, starts: Column, num_tokens: Column, output_positions: Column
) -> StepRows:
    """Parts of the rows; those without tokens are left out."""
    chosen = num_tokens > 0
    return StepRows(
        slots=rows.slots[chosen],
        starts=starts[chosen],
        num_tokens=num_tokens[chosen],
        write_starts=rows.write_starts[chosen],
        output_positions=output_positions[chosen],
    )
