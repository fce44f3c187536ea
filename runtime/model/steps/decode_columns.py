"""Columns of captured steps of single tokens: most steps, whose time on the host is Python's.

They are those of `step_columns`, which takes more than twice as long: here rows are neither sorted
nor cut, and padding is there already.
"""

import numpy as np

from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import SamplingRows
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.step_rows import StepRows, padding_columns, step_columns
from raydix.runtime.model.steps.step_shapes import StepShape


class PackedColumns:
    """Packs the columns of captured steps. Owns: those of padding, of each shape of decodes."""

    def __init__(self, slots: RequestSlots) -> None:
        self._slots = slots
        self._padding: dict[StepShape, Column] = {}

    def pack(self, rows: StepRows, sampling: SamplingRows, shape: StepShape) -> Column:
        """The columns of rows, of which `sampling` are those that sample: see `step_columns`."""
        if not shape.is_decode or len(sampling.slots) < len(rows.slots):
            return step_columns(rows, sampling, self._slots, shape)
        padding = self._padding.get(shape)
        if padding is None:
            padding = self._padding[shape] = padding_columns(self._slots, shape)
        return _decode_columns(rows, sampling, self._slots, shape, padding.copy())


def _decode_columns(
    rows: StepRows, sampling: SamplingRows, slots: RequestSlots, shape: StepShape, packed: Column
) -> Column:
    """`step_columns` of rows of one token that all sample, written over packed padding."""
    columns = shape.layout.views(packed)
    count, starts = len(rows.slots), rows.starts
    token_index = rows.slots * slots.tokens_per_slot
    token_index += starts
    pages, offsets = np.divmod(starts, slots.page_size)
    pages += rows.slots * slots.max_pages
    is_left_out = starts < rows.write_starts
    if is_left_out.any():
        pages[is_left_out] = slots.scratch_slot * slots.max_pages

    columns["token_index_T"][:count] = token_index
    columns["page_index_T"][:count] = pages
    columns["page_offset_T"][:count] = offsets
    columns["positions_T"][:count] = starts
    columns["slots_Y"][:count] = rows.slots
    columns["contexts_Y"][:count] = sampling.ends
    columns["last_tokens_R"][:count] = columns["first_tokens_Y"][:count]
    token_index += 1
    columns["next_index_R"][:count] = token_index
    for name, column in sampling.columns.items():
        columns[name][:count] = column
    return packed
