"""Any plans, one after another, against plain dicts and lists."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.slots.slot_memory import SlotMemory
from raydix.runtime.model.staging.columns import Column

SLOTS, GROUPS, PAGES, PAGE_SIZE, POOL_PAGES = 3, 2, 5, 2, 9
SAMPLING = DeviceSampling(seed=0)


def make(max_model_len: int = PAGES * PAGE_SIZE) -> RequestSlots:
    return RequestSlots(
        pool_pages=[POOL_PAGES] * GROUPS,
        page_size=PAGE_SIZE,
        max_slots=SLOTS,
        max_model_len=max_model_len,
        device=torch.device("cpu"),
    )


def added(slot: int, token_ids: list[int]) -> AddedRequest:
    return AddedRequest(
        slot=Slot(slot),
        request_id=RequestId(str(slot)),
        token_ids=int32_array(token_ids),
        num_prompt_tokens=len(token_ids),
        sampling=SAMPLING,
    )


def tables(group: int, runs: list[tuple[int, int, list[int]]]) -> TableChanges:
    """Slot, start and page ids of each."""
    return TableChanges(
        group=group,
        slots=int32_array(slot for slot, _, _ in runs),
        starts=int32_array(start for _, start, _ in runs),
        counts=int32_array(len(page_ids) for _, _, page_ids in runs),
        page_ids=int32_array(page_id for _, _, page_ids in runs for page_id in page_ids),
    )


@dataclass
class Naive:
    """What slots hold: tokens of those that are taken, and all block tables."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    tables: list[list[list[int]]] = field(
        default_factory=lambda: [[[0] * PAGES for _ in range(SLOTS)] for _ in range(GROUPS)]
    )

    def apply(self, plan: StepPlan) -> None:
        for slot in plan.removed_slots.tolist():
            del self.tokens[slot]
        for request in plan.added:
            self.tokens[request.slot] = request.token_ids.tolist()
            for table in self.tables:
                table[request.slot] = [0] * PAGES
        for changes in plan.tables:
            page_ids = iter(changes.page_ids.tolist())
            columns = (changes.slots.tolist(), changes.starts.tolist(), changes.counts.tolist())
            for slot, start, count in zip(*columns, strict=True):
                run = [next(page_ids) for _ in range(count)]
                self.tables[changes.group][slot][start : start + count] = run


def apply_watched(slots: RequestSlots, plan: StepPlan) -> int:
    """Apply a plan. Returns how many numbers are written, of which no two have one place."""
    places: list[int] = []
    write = SlotMemory._write

    def watched(memory: SlotMemory, places_W: Column, numbers_W: Int32Array) -> None:
        places.extend(places_W.tolist())
        write(memory, places_W, numbers_W)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotMemory, "_write", watched)
        slots.apply(plan)
    # Which of two a GPU writes last is anyone's guess.
    assert len(set(places)) == len(places)
    return len(places)


@given(st.data())
def test_slots_hold_what_plans_put_there(data: st.DataObject) -> None:
    slots, naive = make(), Naive()
    any_tokens = st.lists(st.integers(0, 99), max_size=PAGES * PAGE_SIZE)

    for step in range(data.draw(st.integers(1, 6))):
        taken = set(naive.tokens)
        removed = data.draw(st.sets(st.sampled_from(sorted(taken)))) if taken else set()
        free = sorted(set(range(SLOTS)) - taken | removed)
        coming = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
        changes = []
        for group in range(GROUPS):
            runs = []
            for slot in data.draw(st.permutations(sorted(taken - removed | set(coming)))):
                start = data.draw(st.integers(0, PAGES))
                # Those behind a window are left behind: pages of zero.
                page_ids = st.lists(st.integers(0, POOL_PAGES), max_size=PAGES - start)
                runs.append((slot, start, data.draw(page_ids)))
            changes.append(tables(group, runs))
        plan = StepPlan(
            step=step,
            removed_slots=int32_array(removed),
            added=tuple(added(slot, data.draw(any_tokens)) for slot in coming),
            tables=tuple(changes),
        )
        apply_watched(slots, plan)
        naive.apply(plan)

        for slot, token_ids in naive.tokens.items():
            assert slots.tokens_XL[slot, : len(token_ids)].tolist() == token_ids
        for table_XN, table in zip(slots.tables_XN, naive.tables, strict=True):
            assert table_XN.tolist() == [*table, [0] * PAGES]


def test_tables_are_written_as_far_as_they_were_and_not_to_the_longest_request() -> None:
    slots = make(max_model_len=1_000_000)
    removed, again = int32_array([0]), (added(0, [7]),)

    written = [
        apply_watched(slots, plan)
        for plan in (
            StepPlan(step=0, added=again, tables=(tables(0, [(0, 0, [1, 2, 3])]),)),
            StepPlan(
                step=1, removed_slots=removed, added=again, tables=(tables(0, [(0, 0, [4])]),)
            ),
            StepPlan(step=2, removed_slots=removed, added=again),
        )
    ]

    assert written == [1 + 3, 1 + 3, 1 + 1]
    assert not slots.tables_XN[0].any()
