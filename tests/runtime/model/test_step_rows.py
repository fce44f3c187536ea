"""What a plan's rows become before they go to the device."""

import numpy as np
import pytest
import torch

from raydix.errors import AccountingError
from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan
from raydix.runtime.model.request_slots import RequestSlots
from raydix.runtime.model.step_rows import decode_columns, padding_columns, padding_row, read_rows, token_columns

PAGE_SIZE, MAX_MODEL_LEN, MAX_SLOTS = 8, 50, 4
PAGES, TOKENS = 7, MAX_MODEL_LEN + 1


@pytest.fixture
def slots() -> RequestSlots:
    slots = RequestSlots(
        num_groups=1,
        page_size=PAGE_SIZE,
        max_slots=MAX_SLOTS,
        max_model_len=MAX_MODEL_LEN,
        device=torch.device("cpu"),
    )
    for slot in (1, 3):
        slots.add(
            AddedRequest(
                slot=Slot(slot),
                request_id=RequestId(str(slot)),
                token_ids=int32_array(range(20)),
                num_prompt_tokens=20,
                sampling=DeviceSampling(seed=0),
            )
        )
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


def test_padding_stays_in_the_scratch_slot(slots: RequestSlots) -> None:
    columns = decode_columns(read_rows(plan([(1, 20, 1, 20, 0)]), slots), slots, 3)

    assert columns[:, 0].tolist() == [TOKENS + 20, PAGES + 2, 4, 20, 1, 0, 21, TOKENS + 21]
    scratch_token, scratch_page = MAX_SLOTS * TOKENS, MAX_SLOTS * PAGES
    for row in (1, 2):
        expected = [scratch_token, scratch_page, 0, 0, MAX_SLOTS, row, 1, scratch_token + 1]
        assert columns[:, row].tolist() == expected
    assert np.array_equal(padding_columns(slots)[:, 1:3], columns[:, 1:])


def test_a_padding_row_keeps_nothing(slots: RequestSlots) -> None:
    tokens = token_columns(padding_row(5, 30, slots), slots)

    assert set(tokens.page_index_T.tolist()) == {MAX_SLOTS * PAGES}


def test_only_steps_of_sampling_single_tokens_are_decode_steps(slots: RequestSlots) -> None:
    decode, prefill, silent = (1, 20, 1, 20, 0), (3, 0, 5, 0, 0), (3, 4, 1, 4, -1)

    assert read_rows(plan([decode]), slots).is_decode
    assert not read_rows(plan([decode, prefill]), slots).is_decode
    assert not read_rows(plan([decode, silent]), slots).is_decode


@pytest.mark.parametrize("row", [(1, 0, 0, 0, -1), (1, -1, 2, 0, -1), (1, 40, 11, 40, -1), (2, 0, 1, 0, -1)])
def test_impossible_rows_are_refused(slots: RequestSlots, row: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(AccountingError):
        read_rows(plan([row]), slots)
