"""What a plan's rows become before they go to the device."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from raydix.errors import AccountingError
from raydix.ids import RequestId, Slot
from raydix.kernels.sampling.columns import COLUMN_DTYPES
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_sampling import mix, noise_keys
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.step_rows import (
    idle_row,
    padding_columns,
    padding_row,
    read_rows,
    step_columns,
    token_columns,
)
from raydix.runtime.model.steps.step_shapes import (
    SEQUENCE_NAMES,
    TILE_NAMES,
    TOKEN_NAMES,
    StepShape,
    decode_shapes,
    extension_shapes,
    keeping_states,
    large_shapes,
    prompt_shapes,
)

PAGE_SIZE, MAX_MODEL_LEN, MAX_SLOTS = 8, 50, 4
PAGES, TOKENS = 7, MAX_MODEL_LEN + 1
ROW_NAMES = ("last_tokens_R", "next_index_R")
SAMPLED = DeviceSampling(seed=-5, temperature=0.5, top_k=7, top_p=0.75, min_p=0.25, min_tokens=2)


@pytest.fixture
def slots() -> RequestSlots:
    slots = RequestSlots(
        pool_pages=[40],
        page_size=PAGE_SIZE,
        max_slots=MAX_SLOTS,
        max_model_len=MAX_MODEL_LEN,
        device=torch.device("cpu"),
    )

    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(range(20)),
            num_prompt_tokens=20,
            sampling=SAMPLED if slot == 3 else DeviceSampling(seed=0),
        )
        for slot in (1, 3)
    )
    slots.apply(StepPlan(step=0, added=added))
    return slots


def plan(rows: list[tuple[int, int, int, int, int]]) -> StepPlan:
    """Rows of (slot, start, tokens, write start, output position)."""
    columns = [int32_array(column) for column in zip(*rows, strict=True)]
    return StepPlan(
        step=0,
        row_slots=columns[0],
        row_starts=columns[1],
        row_num_tokens=columns[2],
        row_write_starts=columns[3],
        row_output_positions=columns[4],
        row_loads=int32_array([-1] * len(rows)),
    )


def test_tokens_are_found_in_their_slots_and_pages(slots: RequestSlots) -> None:
    tokens = token_columns(read_rows(plan([(3, 7, 2, 7, -1), (1, 20, 1, 20, 0)]), slots), slots)

    assert tokens.positions_T.tolist() == [7, 8, 20]
    assert tokens.token_index_T.tolist() == [3 * TOKENS + 7, 3 * TOKENS + 8, TOKENS + 20]
    assert tokens.page_index_T.tolist() == [3 * PAGES, 3 * PAGES + 1, PAGES + 2]
    assert tokens.page_offset_T.tolist() == [7, 0, 4]


def test_what_is_not_kept_goes_to_the_padding_page(slots: RequestSlots) -> None:
    tokens = token_columns(read_rows(plan([(3, 7, 3, 9, -1)]), slots), slots)

    pages = slots.tables_XN[0].view(-1)[torch.from_numpy(tokens.page_index_T)]
    assert tokens.page_index_T.tolist() == [MAX_SLOTS * PAGES, MAX_SLOTS * PAGES, 3 * PAGES + 1]
    assert pages[:2].tolist() == [0, 0]


def columns_of(
    slots: RequestSlots, shape: StepShape, row: tuple[int, int, int, int, int]
) -> dict[str, Any]:
    """The columns of a captured step of one row."""
    rows = read_rows(plan([row]), slots)
    return unpack(step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape), shape)


def unpack(packed: Column, shape: StepShape) -> dict[str, Any]:
    """The columns by name, as lists of numbers."""
    columns = shape.layout.split(torch.from_numpy(packed))
    return {name: column.tolist() for name, column in columns.items()}


def picked(columns: dict[str, Any], names: Iterable[str]) -> list[Any]:
    return [columns[name] for name in names]


def test_padding_of_a_decode_step_is_single_tokens_of_the_scratch_slot(slots: RequestSlots) -> None:
    shape = StepShape(num_tokens=3, num_rows=3, tokens_per_tile=1)

    columns = columns_of(slots, shape, (1, 20, 1, 20, 0))

    token, page = MAX_SLOTS * TOKENS, MAX_SLOTS * PAGES
    assert picked(columns, TOKEN_NAMES) == [
        [TOKENS + 20, token, token],
        [PAGES + 2, page, page],
        [4, 0, 0],
        [20, 0, 0],
    ]
    assert picked(columns, TILE_NAMES) == [
        [1, MAX_SLOTS, MAX_SLOTS],
        [0, 1, 2],
        [1, 1, 1],
        [21, 1, 1],
    ]
    assert picked(columns, ROW_NAMES) == [[0, 0, 0], [TOKENS + 21, token + 1, token + 1]]


def test_an_extension_is_cut_into_tiles_and_padded_in_the_scratch_slot(slots: RequestSlots) -> None:
    shape = StepShape(num_tokens=8, num_rows=1, tokens_per_tile=4)

    columns = columns_of(slots, shape, (3, 14, 6, 14, 0))

    token, page = MAX_SLOTS * TOKENS, MAX_SLOTS * PAGES
    assert columns["token_index_T"] == [3 * TOKENS + position for position in range(14, 20)] + [
        token,
        token + 1,
    ]
    assert columns["page_index_T"] == [3 * PAGES + 1] * 2 + [3 * PAGES + 2] * 4 + [page, page]
    assert columns["page_offset_T"] == [6, 7, 0, 1, 2, 3, 0, 1]
    assert columns["positions_T"] == [14, 15, 16, 17, 18, 19, 0, 1]
    assert picked(columns, TILE_NAMES) == [[3, 3, MAX_SLOTS], [0, 4, 6], [4, 2, 2], [18, 20, 2]]
    assert picked(columns, ROW_NAMES) == [[5], [3 * TOKENS + 20]]


def test_sampling_parameters_travel_in_the_steps_columns(slots: RequestSlots) -> None:
    shape = StepShape(num_tokens=8, num_rows=1, tokens_per_tile=4)

    columns = columns_of(slots, shape, (3, 14, 6, 14, 2))

    seed = np.array([2**64 - 5], dtype=np.uint64)
    assert columns["noise_keys_R"] == noise_keys(mix(seed), np.array([2])).tolist()
    assert picked(columns, ["temperatures_R", "min_ps_R", "top_ks_R"]) == [[0.5], [0.25], [7]]
    assert columns["top_ps_R"] == [pytest.approx(0.75, rel=1e-5)]


def test_a_row_that_is_masked_still_is_sampled_apart(slots: RequestSlots) -> None:
    shape = StepShape(num_tokens=8, num_rows=1, tokens_per_tile=4)

    columns = columns_of(slots, shape, (3, 14, 6, 14, 1))

    assert not np.any(picked(columns, COLUMN_DTYPES))


@pytest.mark.parametrize("num_tokens", range(1, 9))
def test_tiles_hold_every_token_of_an_extension_once(slots: RequestSlots, num_tokens: int) -> None:
    shape = StepShape(num_tokens=8, num_rows=1, tokens_per_tile=3)

    columns = columns_of(slots, shape, (3, 10, num_tokens, 10, 0))

    _, firsts, counts, contexts = picked(columns, TILE_NAMES)

    covered = [first + i for first, count in zip(firsts, counts, strict=True) for i in range(count)]
    assert covered == list(range(8))
    ends = [
        context
        for context, first in zip(contexts, firsts, strict=True)
        if context and first < num_tokens
    ]
    assert ends[-1] == 10 + num_tokens


@pytest.mark.parametrize(
    "shape",
    [
        *decode_shapes(MAX_SLOTS),
        *extension_shapes(MAX_MODEL_LEN, 16),
        *prompt_shapes(MAX_SLOTS, MAX_MODEL_LEN),
        *prompt_shapes(MAX_SLOTS, 16),
        *large_shapes(200, 16, 2048),
    ],
)
def test_what_is_all_padding_touches_the_scratch_slot_and_the_padding_page_alone(
    slots: RequestSlots, shape: StepShape
) -> None:
    columns = unpack(padding_columns(slots, shape), shape)
    tokens, pages, _, positions = picked(columns, TOKEN_NAMES)
    next_tokens = columns["next_index_R"]

    assert min(*tokens, *next_tokens) >= MAX_SLOTS * TOKENS
    assert max(*tokens, *next_tokens) < (MAX_SLOTS + 1) * TOKENS
    assert set(pages) == {MAX_SLOTS * PAGES}
    assert max(positions) < MAX_MODEL_LEN
    assert set(columns["slots_Y"]) <= {MAX_SLOTS, 0}
    assert not np.any(picked(columns, COLUMN_DTYPES)), "padding is greedy"


def tiles_of(columns: dict[str, Any]) -> list[list[int]]:
    """The tiles of prompts that do something."""
    return [tile for tile in columns["tiles_X4"] if tile[2]]


def test_prompts_are_cut_into_tiles_beside_single_tokens(slots: RequestSlots) -> None:
    (shape,) = (each for each in prompt_shapes(MAX_SLOTS, 16) if each.num_tokens == 32)
    rows = read_rows(plan([(3, 1, 18, 1, 0), (1, 20, 1, 20, 0)]), slots)

    packed = step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape)
    columns = unpack(packed, shape)

    assert [column[:2] for column in picked(columns, TILE_NAMES)] == [
        [1, 0],
        [18, 0],
        [1, 0],
        [21, 0],
    ]
    assert tiles_of(columns) == [[3, 16, 2, 19], [3, 0, 16, 17], [MAX_SLOTS, 19, 13, 13]]
    assert columns["last_tokens_R"] == [17, 18, 0, 0]
    assert columns["next_index_R"][:2] == [3 * TOKENS + 19, TOKENS + 21]


@pytest.mark.parametrize("length", range(2, 32))
def test_tiles_hold_every_token_of_prompts_and_padding_once(
    slots: RequestSlots, length: int
) -> None:
    (shape,) = (each for each in prompt_shapes(MAX_SLOTS, 7) if each.num_tokens == 32)
    row_lengths = [(3, 0, length), (1, 20, 1)] if length < 32 else [(3, 0, length)]
    rows = read_rows(plan([(*each, 0, 0) for each in row_lengths]), slots)
    assert shape.holds_prompts(rows.num_tokens)

    packed = step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape)
    columns = unpack(packed, shape)

    firsts, contexts = picked(columns, ["first_tokens_Y", "contexts_Y"])
    singles = [first for first, context in zip(firsts, contexts, strict=True) if context]
    covered = [first + i for _, first, count, _ in tiles_of(columns) for i in range(count)]
    assert sorted(covered + singles) == list(range(32))


def test_rows_whose_states_change_are_whole_and_padding_is_none_of_them(
    slots: RequestSlots,
) -> None:
    (shape,) = (each for each in prompt_shapes(MAX_SLOTS, 16) if each.num_tokens == 32)
    shape = keeping_states(shape)
    rows = read_rows(plan([(3, 1, 18, 1, 0), (1, 20, 1, 20, 0)]), slots)

    packed = step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape)

    nothing = [0] * (shape.num_sequences - 1)
    whole = [[first, *nothing] for first in (3, 0, 18, 19)]
    assert picked(unpack(packed, shape), SEQUENCE_NAMES) == whole


@pytest.mark.parametrize("num_tokens", [1, 6])
def test_the_only_row_of_an_extension_is_one_whose_state_changes(
    slots: RequestSlots, num_tokens: int
) -> None:
    shape = keeping_states(StepShape(num_tokens=8, num_rows=1, tokens_per_tile=4))

    columns = columns_of(slots, shape, (3, 14, num_tokens, 14, 0))

    assert picked(columns, SEQUENCE_NAMES) == [[3], [0], [num_tokens], [14 + num_tokens]]


def test_a_padding_row_keeps_nothing(slots: RequestSlots) -> None:
    tokens = token_columns(padding_row(5, 30, slots), slots)

    assert set(tokens.page_index_T.tolist()) == {MAX_SLOTS * PAGES}


def test_rows_that_sample_come_first_in_a_captured_step(slots: RequestSlots) -> None:
    shape = StepShape(num_tokens=4, num_rows=4, tokens_per_tile=1)
    rows = read_rows(plan([(3, 4, 1, 4, -1), (1, 20, 1, 20, 0), (3, 5, 1, 5, -1)]), slots)

    packed = step_columns(rows, rows.sampling_rows(slots.sampling), slots, shape)
    columns = unpack(packed, shape)

    scratch = MAX_SLOTS * TOKENS
    assert columns["token_index_T"] == [TOKENS + 20, 3 * TOKENS + 4, 3 * TOKENS + 5, scratch]
    assert columns["last_tokens_R"][:1] == [0]
    assert columns["next_index_R"] == [TOKENS + 21, scratch + 1, scratch + 1, scratch + 1]


def test_an_idle_row_samples_and_keeps_nothing(slots: RequestSlots) -> None:
    row = idle_row(slots)

    assert len(row.sampling) == 0
    assert set(token_columns(row, slots).page_index_T.tolist()) == {MAX_SLOTS * PAGES}


@pytest.mark.parametrize(
    "row", [(1, 0, 0, 0, -1), (1, -1, 2, 0, -1), (1, 40, 11, 40, -1), (2, 0, 1, 0, -1)]
)
def test_impossible_rows_are_refused(
    slots: RequestSlots, row: tuple[int, int, int, int, int]
) -> None:
    with pytest.raises(AccountingError):
        read_rows(plan([row]), slots)
