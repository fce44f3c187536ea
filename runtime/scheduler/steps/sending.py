"""Send drafts as the plans of a step group: entered as in flight, and written out."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.runtime.messages.arrays import Int32Array, empty, frozen, int32_array
from raydix.runtime.messages.plan import StepPlan, TableChanges
from raydix.runtime.scheduler.ranks.expert_balance import ExpertOrders
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.request.transfers import page_copies
from raydix.runtime.scheduler.steps.draft import Draft

_NOTHING = empty()
_NO_ORDERS = ExpertOrders()


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the plans of a step group's lanes have in common."""

    step: int
    group_rows: Int32Array
    group_tokens: Int32Array
    orders: ExpertOrders


def send(
    step_group: StepGroup, drafts: list[tuple[Lane, Draft]], now_s: float
) -> list[tuple[Lane, StepPlan]]:
    """Enter the plans as in flight, under one number, and write them out."""
    most_tokens = max([draft.num_tokens for _, draft in drafts])
    steps = [
        lane.send(
            draft.decodes,
            draft.rows,
            [*draft.loads, *draft.backups],
            num_tokens=draft.num_tokens,
            most_tokens=most_tokens,
            now_s=now_s,
        )
        for lane, draft in drafts
    ]
    step = steps[0]
    assert steps.count(step) == len(steps), "lanes of a step group count steps together"

    group_rows, group_tokens = _group_columns([draft for _, draft in drafts])
    orders = _NO_ORDERS
    if step_group.experts is not None:
        orders = step_group.experts.plan_step(step, now_s)
    shared = _Shared(step, group_rows, group_tokens, orders)
    return [(lane, _write(lane, draft, shared)) for lane, draft in drafts]


def _group_columns(drafts: Sequence[Draft]) -> tuple[Int32Array, Int32Array]:
    """The rows and tokens of each lane of the step group; nothing for a lane that steps alone."""
    if len(drafts) == 1:
        return _NOTHING, _NOTHING
    rows = [draft.num_rows for draft in drafts]
    return int32_array(rows), int32_array([draft.num_tokens for draft in drafts])


def _write(lane: Lane, draft: Draft, shared: _Shared) -> StepPlan:
    slots, starts, counts, write_starts, outputs, row_loads = _row_columns(draft)

    removed = lane.take_removed_slots()

    return StepPlan(
        step=shared.step,
        removed_slots=int32_array(removed) if removed else _NOTHING,
        grammars=lane.grammars.take_changes(),
        added=tuple(draft.added),
        tables=_table_changes(draft),
        loads=page_copies(draft.loads),
        backups=page_copies(draft.backups),
        row_slots=slots,
        row_starts=starts,
        row_num_tokens=counts,
        row_write_starts=write_starts,
        row_output_positions=outputs,
        row_loads=row_loads,
        row_repeats=_NOTHING if draft.decodes is None else draft.decodes.repeats,
        group_rows=shared.group_rows,
        group_tokens=shared.group_tokens,
        expert_copies=shared.orders.copies,
        placement=shared.orders.change,
    )


def _columns(rows: list[tuple[int, ...]], width: int) -> list[Int32Array]:
    array = np.array(rows, dtype=np.int32).reshape(-1, width)
    return [int32_array(array[:, column]) for column in range(width)]


def _row_columns(draft: Draft) -> list[Int32Array]:
    """The columns `row_*` of the plan, in their order; the rows of the batch come first."""
    decodes = draft.decodes
    if decodes is None:
        return _columns(list(draft.row_columns), 6)
    ones = np.ones(len(decodes.slots), dtype=np.int32)
    batch = [decodes.slots, decodes.starts, ones, decodes.starts, decodes.output_positions, -ones]
    if not draft.row_columns:
        return batch
    columns = _columns(list(draft.row_columns), 6)

    return [frozen(np.concatenate(pair)) for pair in zip(batch, columns, strict=True)]


def _table_changes(draft: Draft) -> tuple[TableChanges, ...]:
    """The changes of block tables, per KV group; none if no table changes: they change together."""
    if not draft.table_columns:
        return ()

    slots, starts, counts = _columns(list(draft.table_columns), 3)
    return tuple(
        TableChanges(
            group=group,
            slots=slots,
            starts=starts,
            counts=counts,
            page_ids=int32_array(itertools.chain.from_iterable(runs)),
        )
        for group, runs in enumerate(zip(*draft.table_pages, strict=True))
    )
