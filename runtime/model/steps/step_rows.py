"""A plan's rows on the host: what a step computes, as columns that one copy takes to the device.

Legend: T tokens of the step, R rows that sample, S rows of several tokens, Y tiles of attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.kernels.attention.rows import PrefillRow, cut_rows
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_memory import run_offsets
from raydix.runtime.model.slots.slot_sampling import SamplingRows, SlotSampling
from raydix.runtime.model.staging.columns import Column, Columns
from raydix.runtime.model.steps.step_shapes import SEQUENCE_NAMES, TILE_NAMES, StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """Where each token of a step is, in tensors seen as one dimension."""

    token_index_T: Column
    """Its place in the slots' tokens."""
    page_index_T: Column
    """Its page's entry in the block tables; if it is not kept, one that names the padding page."""
    page_offset_T: Column
    """Its place in the page."""
    positions_T: Column
    """Its position in the sequence."""

    @property
    def by_name(self) -> Columns:
        """All of them, for a copy to the device."""
        return {
            "token_index_T": self.token_index_T,
            "page_index_T": self.page_index_T,
            "page_offset_T": self.page_offset_T,
            "positions_T": self.positions_T,
        }


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
    def is_prompt(self) -> NDArray[np.bool_]:
        """Which rows compute tokens of a prompt, other than its last alone."""
        return (self.num_tokens > 1) | (self.output_positions < 0)

    @property
    def last_tokens(self) -> Column:
        """Index in T of each row's last token."""
        return np.cumsum(self.num_tokens) - 1

    @property
    def first_tokens(self) -> Column:
        """Index in T of each row's first token."""
        return np.cumsum(self.num_tokens) - self.num_tokens

    def repeated(self, times: int) -> "StepRows":
        """All rows so many times over: for warm-up."""
        return StepRows(
            slots=np.tile(self.slots, times),
            starts=np.tile(self.starts, times),
            num_tokens=np.tile(self.num_tokens, times),
            write_starts=np.tile(self.write_starts, times),
            output_positions=np.tile(self.output_positions, times),
        )

    def sampling_first(self) -> "StepRows":
        """The rows that sample, then the others, each in their order."""
        order = np.argsort(self.output_positions < 0, kind="stable")
        return StepRows(
            slots=self.slots[order],
            starts=self.starts[order],
            num_tokens=self.num_tokens[order],
            write_starts=self.write_starts[order],
            output_positions=self.output_positions[order],
        )

    def sampling_rows(self, sampling: SlotSampling) -> SamplingRows:
        """The rows that sample."""
        chosen = self.sampling
        if len(chosen) == len(self.slots):
            return sampling.rows(self.slots, self.ends, self.output_positions)
        return sampling.rows(self.slots[chosen], self.ends[chosen], self.output_positions[chosen])

    def attention_rows(self, is_chosen: NDArray[np.bool_]) -> tuple[PrefillRow, ...]:
        """Some of the rows; their row in the block tables is their slot."""
        ends = self.ends
        first_tokens = self.first_tokens
        return tuple(
            PrefillRow(
                row=int(self.slots[row]),
                first_token=int(first_tokens[row]),
                num_tokens=int(self.num_tokens[row]),
                context_tokens=int(ends[row]),
            )
            for row in np.flatnonzero(is_chosen)
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

    is_wrong = (rows.num_tokens < 1) | (rows.starts < 0) | (rows.ends > slots.max_model_len)
    if is_wrong.any():
        raise AccountingError(
            f"Plan {plan.step} has rows from {rows.starts.tolist()} to {rows.ends.tolist()}; "
            f"expected at least one token each, within max_model_len {slots.max_model_len}."
        )
    if not slots.is_taken[rows.slots].all():
        raise AccountingError(
            f"Plan {plan.step} runs slots {rows.slots.tolist()}, of which some are free."
        )
    return rows


def token_columns(rows: StepRows, slots: RequestSlots) -> TokenColumns:
    """Find every token of the rows."""
    slots_T = np.repeat(rows.slots, rows.num_tokens)
    positions_T = np.repeat(rows.starts, rows.num_tokens) + run_offsets(rows.num_tokens)
    page_index_T = slots_T * slots.max_pages + positions_T // slots.page_size
    is_kept_T = positions_T >= np.repeat(rows.write_starts, rows.num_tokens)
    return TokenColumns(
        token_index_T=slots_T * slots.tokens_per_slot + positions_T,
        page_index_T=np.where(is_kept_T, page_index_T, slots.scratch_slot * slots.max_pages),
        page_offset_T=positions_T % slots.page_size,
        positions_T=positions_T,
    )


def step_columns(
    rows: StepRows, sampling: SamplingRows, slots: RequestSlots, shape: StepShape
) -> Column:
    """Packed columns of a captured step, in its shape's layout: its rows, then padding.

    Rows that sample come first: in a step of single tokens they are found by their number. There
    are `TokenColumns`, `tile_columns`, and the table of tiles of prompts `tiles_X4`. Of each row
    that samples `last_tokens_R` is its last token's index in T, and `next_index_R` is the place in
    the slots' tokens to which the sampled one goes; `SamplingColumns` say how. Padding is greedy.
    """
    rows = rows.sampling_first()
    padded = _add_padding(rows, slots, shape)
    tokens = token_columns(padded, slots)
    last_tokens_R = rows.last_tokens[rows.sampling]
    next_index_R = np.full(shape.num_rows, slots.scratch_slot * slots.tokens_per_slot + 1)
    next_index_R[: len(last_tokens_R)] = tokens.token_index_T[last_tokens_R] + 1

    columns: Columns = {
        **tokens.by_name,
        **_attention_columns(padded, rows, shape),
        **_sequence_columns(rows, shape),
        "last_tokens_R": last_tokens_R,
        "next_index_R": next_index_R,
        **sampling.columns,
    }
    return shape.layout.pack(columns)


def padding_columns(slots: RequestSlots, shape: StepShape) -> Column:
    """`step_columns` of a step that is all padding."""
    nothing = np.empty(0, dtype=np.int64)
    rows = StepRows(
        slots=nothing,
        starts=nothing,
        num_tokens=nothing,
        write_starts=nothing,
        output_positions=nothing,
    )
    return step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape)


def padding_row(num_tokens: int, start: int, slots: RequestSlots) -> StepRows:
    """One sampling row in the scratch slot, of which nothing is kept."""
    column = np.array(
        [[slots.scratch_slot], [start], [num_tokens], [start + num_tokens], [0]], dtype=np.int64
    )
    return StepRows(
        slots=column[0],
        starts=column[1],
        num_tokens=column[2],
        write_starts=column[3],
        output_positions=column[4],
    )


def prompts_of_padding(num_tokens: int, slots: RequestSlots) -> StepRows:
    """Rows of so many tokens in the scratch slot, as long as may be. They sample nothing."""
    starts = np.arange(0, num_tokens, slots.max_model_len)
    lengths = np.minimum(num_tokens - starts, slots.max_model_len)
    return StepRows(
        slots=np.full(len(starts), slots.scratch_slot),
        starts=np.zeros(len(starts), dtype=np.int64),
        num_tokens=lengths,
        write_starts=lengths,
        output_positions=np.full(len(starts), -1),
    )


def idle_row(slots: RequestSlots) -> StepRows:
    """A row for a step in which only other lanes have some. It samples nothing."""
    return replace(padding_row(1, 0, slots), output_positions=np.array([-1]))


def _add_padding(rows: StepRows, slots: RequestSlots, shape: StepShape) -> StepRows:
    """Fill the shape with rows of the scratch slot, a tile each, not kept and not sampled."""
    missing = shape.num_tokens - int(rows.num_tokens.sum())
    if not missing:
        return rows

    length = shape.tokens_per_prompt_tile if shape.num_prompt_tiles else shape.tokens_per_tile
    starts = np.arange(0, missing, length)
    num_tokens = np.minimum(missing - starts, length)
    return StepRows(
        slots=np.concatenate((rows.slots, np.full(len(starts), slots.scratch_slot))),
        starts=np.concatenate((rows.starts, np.zeros(len(starts), dtype=np.int64))),
        num_tokens=np.concatenate((rows.num_tokens, num_tokens)),
        write_starts=np.concatenate((rows.write_starts, num_tokens)),
        output_positions=np.concatenate((rows.output_positions, np.full(len(starts), -1))),
    )


def tile_columns(columns_4Y: Sequence[Column] | Column) -> dict[str, Column]:
    """Name the columns of tiles of few tokens, which are in the order of `TILE_NAMES`."""
    return dict(zip(TILE_NAMES, columns_4Y, strict=True))


def whole_columns(rows: StepRows, is_chosen: NDArray[np.bool_]) -> dict[str, Column]:
    """Some of the rows, uncut, as layers that keep states need them: see `SEQUENCE_NAMES`."""
    columns = (rows.slots, rows.first_tokens, rows.num_tokens, rows.ends)
    return dict(zip(SEQUENCE_NAMES, [each[is_chosen] for each in columns], strict=True))


def _sequence_columns(rows: StepRows, shape: StepShape) -> Columns:
    """Columns of rows whose states are changed, where some are. Padding has no state."""
    if not shape.num_sequences:
        return {}
    # Single tokens beside prompts are tiles; an extension's only row may have a single one.
    return whole_columns(rows, (rows.num_tokens > 1) | (not shape.num_prompt_tiles))


def _attention_columns(padded: StepRows, rows: StepRows, shape: StepShape) -> Columns:
    """Columns of tiles, and the table of tiles of prompts. `padded`: `rows`, then padding."""
    tiles_X4 = np.zeros((shape.num_prompt_tiles, 4), dtype=np.int32)
    if not shape.num_prompt_tiles:
        return {**tile_columns(_cut_tiles(padded, shape.tokens_per_tile)), "tiles_X4": tiles_X4}

    is_single = padded.num_tokens == 1
    # A padding row of one token is a tile as well: there may be as many single tokens as rows.
    is_single[len(rows.slots) :] = False
    cut = cut_rows(padded.attention_rows(~is_single), shape.tokens_per_prompt_tile)
    tiles_X4[: len(cut)] = cut
    singles = (padded.slots, padded.first_tokens, padded.num_tokens, padded.ends)
    columns = tile_columns([column[is_single] for column in singles])
    return {**columns, "tiles_X4": tiles_X4}


def _cut_tiles(rows: StepRows, tokens_per_tile: int) -> tuple[Column, Column, Column, Column]:
    """Cut the rows into tiles."""
    if tokens_per_tile == 1 == rows.num_tokens.max(initial=1):
        return rows.slots, rows.first_tokens, rows.num_tokens, rows.ends
    num_tiles = -(-rows.num_tokens // tokens_per_tile)
    first_Y = run_offsets(num_tiles) * tokens_per_tile
    count_Y = np.minimum(np.repeat(rows.num_tokens, num_tiles) - first_Y, tokens_per_tile)
    context_Y = np.repeat(rows.starts, num_tiles) + first_Y + count_Y
    return (
        np.repeat(rows.slots, num_tiles),
        np.repeat(rows.first_tokens, num_tiles) + first_Y,
        count_Y,
        context_Y,
    )
