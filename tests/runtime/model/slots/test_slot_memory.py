"""Any runs, written together, against plain assignments."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.model.slots import slot_memory
from raydix.runtime.model.slots.slot_memory import Runs, SlotMemory

SLOTS, TOKENS, PAGES, GROUPS = 5, 33, 7, 2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(device: str, num_tokens: int = TOKENS) -> SlotMemory:
    return SlotMemory(
        SLOTS,
        num_tokens=num_tokens,
        num_pages=PAGES,
        num_groups=GROUPS,
        device=torch.device(device),
    )


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, int, int, list[int]]]:
    """Changes of tokens, or of a group's table: slot, start and numbers; no place twice."""
    found = []
    for part, size in [("tokens", TOKENS), *((f"table{group}", PAGES) for group in range(GROUPS))]:
        for slot in draw(st.sets(st.integers(0, SLOTS - 1))):
            start = draw(st.integers(0, size))
            numbers = draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=size - start))
            found.append((part, int(part[-1]) if part != "tokens" else 0, slot, start, numbers))
    return draw(st.permutations(found))


@given(changes(), st.integers(1, 70))
def test_runs_are_written_where_they_belong_and_nowhere_else(
    changed: list[tuple[str, int, int, int, list[int]]], written_together: int
) -> None:
    memory = make("cpu")
    tokens = np.zeros((SLOTS, TOKENS), dtype=np.int32)
    tables = np.zeros((GROUPS, SLOTS, PAGES), dtype=np.int32)
    runs = []
    for part, group, slot, start, numbers in changed:
        place = memory.tokens_place(slot) if part == "tokens" else memory.table_place(group, slot)
        runs.append(Runs.one(place + start, int32_array(numbers)))
        target = tokens[slot] if part == "tokens" else tables[group, slot]
        target[start : start + len(numbers)] = numbers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_memory, "_WRITTEN_TOGETHER", written_together)
        memory.write(runs)

    assert np.array_equal(memory.tokens_XL.numpy(), tokens)
    assert all(
        np.array_equal(table.numpy(), expected)
        for table, expected in zip(memory.tables_XN, tables, strict=True)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_more_numbers_than_one_launch_takes_arrive(device: str) -> None:
    memory = make(device, num_tokens=40_001)
    numbers = np.random.default_rng(0).integers(-(2**31), 2**31, 40_001).astype(np.int32)

    memory.write([Runs.one(memory.tokens_place(slot), numbers + slot) for slot in range(SLOTS)])

    for slot in range(SLOTS):
        assert np.array_equal(memory.tokens_XL[slot].cpu().numpy(), numbers + slot)
    assert not any(table.any() for table in memory.tables_XN)


@pytest.mark.gpu
def test_what_is_on_its_way_is_not_overwritten() -> None:
    memory = make("cuda")
    torch.cuda._sleep(20_000_000)
    seen = []
    for number in range(50):
        memory.write([Runs.one(memory.table_place(1, 2), int32_array([number] * PAGES))])
        seen.append(memory.tables_XN[1][2].clone())

    assert [each.unique().tolist() for each in seen] == [[number] for number in range(50)]
    assert not memory.tokens_XL.any()
