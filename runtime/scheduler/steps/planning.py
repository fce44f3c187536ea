"""Build the next plans of a step group: each lane's rows, loads and backups under one number."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.runtime.messages.arrays import Int32Array, empty, frozen, int32_array
from raydix.runtime.messages.plan import StepPlan, TableChanges
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.expert_balance import ExpertOrders
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.transfers import Backup, Load, page_copies
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.draft import Draft
from raydix.runtime.scheduler.steps.drafts import Drafter
from raydix.runtime.scheduler.timers import Timers

_STEPS_AHEAD = 2
"""The number of steps with rows in flight: one runs and one is queued behind it. If they are short,
a third is queued.
"""
_TURN_S = 1.25e-3
"""Seconds between a step's end and the start of the step that is planned with its result (H200
host: 0.9 to 1.4 ms in half of all cases, 2026-11). A step in between that is shorter than this
leaves the device idle.
"""


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the plans of a step group's lanes have in common."""

    step: int
    group_rows: Int32Array
    group_tokens: Int32Array
    orders: ExpertOrders


class Planner:
    """Plans the steps of step groups."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        lanes: Sequence[Lane],
        requests: Requests,
        source: KvSource,
        rates: Rates,
        drafter: Drafter,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._requests = requests
        self._source = source
        self._rates = rates
        self._drafter = drafter
        self._timers = timers

    def next_plans(self, step_group: StepGroup, now_s: float) -> list[tuple[Lane, StepPlan]]:
        """The next plan of each lane of a step group, already in flight; none if there is nothing.

        A lane that has nothing to do gets one, too, if another one has something.
        """
        if not step_group.is_attached:
            return []
        lanes = step_group.pick(self._lanes)
        num_row_steps = max([lane.in_flight.num_row_steps for lane in lanes])
        has_loads = [lane for lane in lanes if lane.in_flight.ready_loads]
        takes_rows = num_row_steps < _STEPS_AHEAD or (
            num_row_steps == _STEPS_AHEAD and self._are_short(lanes, now_s)
        )
        if not takes_rows and not has_loads:
            return []

        drafts = [(lane, Draft(room=self._settings.step_room)) for lane in lanes]
        has_rows = False
        if takes_rows:
            self._drafter.draft_rows(drafts, now_s)
            for lane, draft in drafts:
                if draft.has_rows:
                    has_rows = True
                    # Not when idle: two tiers that are both full would copy pages to and fro.
                    lane.backups.clean_ahead(lane.l1.tree, num_free=lane.l1.num_free())

        has_copies = False
        for lane, draft in drafts:
            loads = self._take_loads(lane)
            # While rows are in flight, backups wait for the next: they need no plan of their own.
            is_beside_rows = has_rows and lane.backups.is_worth_a_copy(now_s)
            may_copy = is_beside_rows or not num_row_steps
            backups = _take_backups(lane, self._source.view, now_s) if may_copy else []
            if loads or backups:
                has_copies = True
                draft.add_copies(loads, backups)
        if not has_rows and not has_copies:
            return []

        self._watch(step_group, now_s)
        return _send(step_group, drafts, now_s)

    def _watch(self, step_group: StepGroup, now_s: float) -> None:
        """Be woken when a step or copy that is sent now is late."""
        deadline_s = now_s + self._settings.step_deadline_s
        if step_group.set_alarm(deadline_s, now_s):
            self._timers.add(deadline_s)

    def _are_short(self, lanes: Sequence[Lane], now_s: float) -> bool:
        """Whether the steps in flight, of which some have rows, take less than a turn each.

        Whatever is answered, the next step that decodes shows its time.
        """
        steps = [step for lane in lanes for step in lane.in_flight.steps.values()]
        # No step that computes more than a token of each row is that short, or worth another ahead.
        if any(step.num_rows < step.num_tokens for step in steps):
            return False
        most_tokens = max([step.most_tokens for step in steps])
        return self._rates.decode.predict_s(most_tokens, now_s) < _TURN_S

    def _take_loads(self, lane: Lane) -> list[Load]:
        """Take the leased loads whose requests still want them; other leases go back."""
        wanted: list[Load] = []
        for load in lane.in_flight.take_ready_loads():
            # It may have ended, or started over, in the same event that brought the lease.
            request = self._requests.living.get(load.request_id)
            is_for_run = request is not None and request.load is load
            if is_for_run or lane.promotions.of_load(load) is not None:
                wanted.append(load)
            else:
                self._source.release_lease(load.lease_id, load.host_connection)
        return wanted


def _take_backups(lane: Lane, host: HostView, now_s: float) -> list[Backup]:
    """Make a copy to L2 of the oldest dirty pages for which there is room in L2."""
    taken = lane.backups.take(now_s)
    if not any(keys for keys, _ in taken):
        return []
    assert host.connection is not None, "an attached HostMemory has granted the pages"
    grants = [host.take_pages(group, len(page_ids)) for group, (_, page_ids) in enumerate(taken)]
    backup = Backup(
        transfer_id=lane.in_flight.new_transfer_id(),
        page_ids=tuple([int32_array(page_ids) for _, page_ids in taken]),
        host_page_ids=tuple([host_page_ids for host_page_ids, _ in grants]),
        generations=tuple([generations for _, generations in grants]),
        host_connection=host.connection,
        keys=tuple([b"".join(keys) for keys, _ in taken]),
    )
    return [backup]


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


def _send(
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
    orders = ExpertOrders()
    if step_group.experts is not None:
        orders = step_group.experts.plan_step(step, now_s)
    shared = _Shared(step, group_rows, group_tokens, orders)
    return [(lane, _write(lane, draft, shared)) for lane, draft in drafts]


def _group_columns(drafts: Sequence[Draft]) -> tuple[Int32Array, Int32Array]:
    """The rows and tokens of each lane of the step group; nothing for a lane that steps alone."""
    if len(drafts) == 1:
        return empty(), empty()
    rows = [draft.num_rows for draft in drafts]
    return int32_array(rows), int32_array([draft.num_tokens for draft in drafts])


def _write(lane: Lane, draft: Draft, shared: _Shared) -> StepPlan:
    slots, starts, counts, write_starts, outputs, row_loads = _row_columns(draft)

    removed = lane.take_removed_slots()

    return StepPlan(
        step=shared.step,
        removed_slots=int32_array(removed) if removed else empty(),
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
        group_rows=shared.group_rows,
        group_tokens=shared.group_tokens,
        expert_copies=shared.orders.copies,
        placement=shared.orders.change,
    )
