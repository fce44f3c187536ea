"""A plan's rows on the host: what a step computes, as columns that one copy takes to the device.

Legend: T tokens of the step, R rows, B rows of a decode step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.kernels.reference import PrefillRow
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.request_slots import RequestSlots, run_offsets

Column = NDArray[np.int64]
NUM_DECODE_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """Where each token of a step is, in tensors seen as one dimension."""

    token_index_T: Column
    """In the slots' tokens."""
    page_index_T: Column
    """In the block tables; for what is not kept: an entry that names the padding page."""
    page_offset_T: Column
    """Place in the page."""
    positions_T: Column
    """In the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of a step as int64 columns."""

    slots: Column
    starts: Column
    num_tokens: Column
    write_starts: Column
    output_positions: Column

    @property
    def ends(self) -> Column:
        """Position after each row's last token: its context, and where its sampled token goes."""
        return self.starts + self.num_tokens

    @property
    def sampling(self) -> Column:
        """Indices of the rows that sample."""
        return np.flatnonzero(self.output_positions >= 0)

    @property
    def is_decode(self) -> bool:
        """Is every row one token that samples the next?"""
        return bool((self.num_tokens == 1).all() and (self.output_positions >= 0).all())

    def prefill_rows(self) -> tuple[PrefillRow, ...]:
        """The rows of several tokens; their row in the block tables is their slot."""
        ends = self.ends
        first_tokens = np.cumsum(self.num_tokens) - self.num_tokens
        return tuple(
            PrefillRow(
                row=int(self.slots[row]),
                first_token=int(first_tokens[row]),
                num_tokens=int(self.num_tokens[row]),
                context_tokens=int(ends[row]),
            )
            for row in np.flatnonzero(self.num_tokens > 1)
        )


def read_rows(plan: StepPlan, slots: RequestSlots) -> StepRows:
    """The rows of a plan. Raises AccountingError if one is empty, too long or in a free slot."""
    rows = StepRows(
        slots=plan.row_slots.astype(np.int64),
        starts=plan.row_starts.astype(np.int64),
        num_tokens=plan.row_num_tokens.astype(np.int64),
        write_starts=plan.row_write_starts.astype(np.int64),
        output_positions=plan.row_output_positions.astype(np.int64),
    )
    if (rows.num_tokens < 1).any() or (rows.starts < 0).any() or (rows.ends > slots.max_model_len).any():
        raise AccountingError(
            f"Plan {plan.step} has rows from {rows.starts.tolist()} to {rows.ends.tolist()}; expected at least one "
            f"token each, within max_model_len {slots.max_model_len}."
        )
    if not slots.is_taken[rows.slots].all():
        raise AccountingError(f"Plan {plan.step} runs slots {rows.slots.tolist()}, of which some are free.")
    return rows


def token_columns(rows: StepRows, slots: RequestSlots) -> TokenColumns:
    """Find every token of the rows."""
    row_of_token = np.repeat(np.arange(len(rows.slots)), rows.num_tokens)
    slots_T = rows.slots[row_of_token]
    positions_T = rows.starts[row_of_token] + run_offsets(rows.num_tokens)
    page_index_T = slots_T * slots.max_pages + positions_T // slots.page_size
    is_kept_T = positions_T >= rows.write_starts[row_of_token]
    return TokenColumns(
        token_index_T=slots_T * slots.tokens_per_slot + positions_T,
        page_index_T=np.where(is_kept_T, page_index_T, slots.scratch_slot * slots.max_pages),
        page_offset_T=positions_T % slots.page_size,
        positions_T=positions_T,
    )


def decode_columns(rows: StepRows, slots: RequestSlots, num_rows: int) -> NDArray[np.int64]:
    """[NUM_DECODE_COLUMNS, `num_rows`] of a decode step, padded with rows of the scratch slot.

    In order: the `TokenColumns`, slots, indices in T, contexts, and where in the slots' tokens the sampled one goes.
    """
    count = len(rows.slots)
    tokens = token_columns(rows, slots)
    first_token, first_page = slots.scratch_slot * slots.tokens_per_slot, slots.scratch_slot * slots.max_pages
    columns = np.empty((NUM_DECODE_COLUMNS, num_rows), dtype=np.int64)
    columns[:, count:] = np.array([first_token, first_page, 0, 0, slots.scratch_slot, 0, 1, first_token + 1])[:, None]
    columns[0, :count] = tokens.token_index_T
    columns[1, :count] = tokens.page_index_T
    columns[2, :count] = tokens.page_offset_T
    columns[3, :count] = tokens.positions_T
    columns[4, :count] = rows.slots
    columns[5] = np.arange(num_rows)
    columns[6, :count] = rows.ends
    columns[7, :count] = tokens.token_index_T + 1
    return columns


def padding_columns(slots: RequestSlots) -> NDArray[np.int64]:
    """`decode_columns` of a step that is all padding."""
    nothing = np.empty(0, dtype=np.int64)
    rows = StepRows(slots=nothing, starts=nothing, num_tokens=nothing, write_starts=nothing, output_positions=nothing)
    return decode_columns(rows, slots, slots.max_slots)


def padding_row(num_tokens: int, start: int, slots: RequestSlots) -> StepRows:
    """One sampling row in the scratch slot, of which nothing is kept."""
    column = np.array([[slots.scratch_slot], [start], [num_tokens], [start + num_tokens], [0]], dtype=np.int64)
    return StepRows(
        slots=column[0],
        starts=column[1],
        num_tokens=column[2],
        write_starts=column[3],
        output_positions=column[4],
    )
