"""Halves of steps: each has its tokens once, and what is sampled stays in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.micro_batches import halves, split_rows
from raydix.runtime.model.steps.step_rows import StepRows

row_lists = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30), st.booleans()), max_size=6)


def column(*values: int) -> Column:
    return np.array(values, dtype=np.int64)


def make_rows(lengths: list[int], starts: list[int], samples: list[bool]) -> StepRows:
    count = len(lengths)
    return StepRows(
        slots=column(*range(10, 10 + count)),
        starts=column(*starts),
        num_tokens=column(*lengths),
        write_starts=column(*(start + 1 for start in starts)),
        output_positions=column(*(7 if each else -1 for each in samples)),
    )


def tokens_of(rows: StepRows) -> list[tuple[int, int, bool]]:
    """Slot and position of each token, and whether its keys and values are kept."""
    columns = (rows.slots, rows.starts, rows.num_tokens, rows.write_starts)
    return [
        (slot, position, position >= write_start)
        for slot, start, length, write_start in zip(
            *(each.tolist() for each in columns), strict=True
        )
        for position in range(start, start + length)
    ]


def sampled(rows: StepRows) -> list[tuple[int, int, int]]:
    """Slot, end and output position of the rows that sample."""
    chosen = rows.sampling
    columns = (rows.slots, rows.ends, rows.output_positions)
    return list(zip(*(each[chosen].tolist() for each in columns), strict=True))


@given(row_lists, st.integers(0, 60))
def test_both_parts_together_are_the_step(
    described: list[tuple[int, int, bool]], wanted: int
) -> None:
    lengths, starts = [each[0] for each in described], [each[1] for each in described]
    samples = [each[2] for each in described]
    rows = make_rows(lengths, starts, samples)
    num_first = min(wanted, sum(lengths))

    first, second = split_rows(rows, num_first)

    assert len(tokens_of(first)) == num_first
    assert tokens_of(first) + tokens_of(second) == tokens_of(rows)
    assert sampled(first) + sampled(second) == sampled(rows)
    assert min([*first.num_tokens, *second.num_tokens], default=1) > 0


def test_a_row_that_is_cut_goes_on_in_the_second_part_and_samples_there() -> None:
    rows = make_rows([3, 6], [0, 16], [True, True])

    first, second = split_rows(rows, 5)

    assert first.slots.tolist() == [10, 11]
    assert first.output_positions.tolist() == [7, -1]
    assert (second.slots.tolist(), second.starts.tolist()) == ([11], [18])
    assert second.output_positions.tolist() == [7]
    # The context of each part ends with its own last token.
    assert (first.ends.tolist(), second.ends.tolist()) == ([3, 18], [22])


@pytest.mark.parametrize(
    ("tokens", "first", "second"),
    [
        ((8, 7), (4, 4), (4, 3)),
        ((0, 5), (0, 3), (0, 2)),
        ((1, 2), (1, 1), (0, 1)),
    ],
)
def test_lanes_are_halved_one_by_one(
    tokens: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    assert halves(tokens) == (first, second)
