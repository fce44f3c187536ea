"""Build the next plans of a step group: each lane's rows, loads and backups under one number."""

from collections.abc import Sequence

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.steps.copies import CopyDrafter
from raydix.runtime.scheduler.steps.draft import Draft
from raydix.runtime.scheduler.steps.drafts import Drafter
from raydix.runtime.scheduler.steps.pace import what_is_due
from raydix.runtime.scheduler.steps.sending import send
from raydix.runtime.scheduler.steps.standing import is_plan_wanted, needs_no_plan, repeats_in_vain
from raydix.runtime.scheduler.timers import Timers


class Planner:
    """Plans the steps of step groups: what is due, rows, copies, and then they are sent."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        lanes: Sequence[Lane],
        rates: Rates,
        rows: Drafter,
        copies: CopyDrafter,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._rates = rates
        self._rows = rows
        self._copies = copies
        self._timers = timers

    def next_plans(self, step_group: StepGroup, now_s: float) -> list[tuple[Lane, StepPlan]]:
        """The next plan of each lane of a step group, already in flight; none if there is nothing.

        A lane that has nothing to do gets one, too, if another one has something.
        """
        if not step_group.is_attached:
            return []
        lanes = step_group.pick(self._lanes)
        # Each event of an engine comes by here for all its step groups, of which most may be idle.
        if all(map(needs_no_plan, lanes)):
            return []
        wants_rows = any(map(is_plan_wanted, lanes))
        flights = [lane.in_flight for lane in lanes]
        has_masks = any(lane.grammars.is_used for lane in lanes)
        due = what_is_due(flights, self._rates, now_s, wants_rows=wants_rows, has_masks=has_masks)
        if due is None:
            return []

        drafts = [(lane, Draft(room=self._settings.step_room)) for lane in lanes]
        if due.takes_rows:
            self._rows.draft_rows(drafts, now_s)
        self._copies.draft_copies(drafts, now_s, num_row_plans=due.num_row_plans)
        has_work = [draft for _, draft in drafts if draft.has_rows or draft.has_copies]
        if not has_work and not any(map(repeats_in_vain, lanes)):
            return []

        # Be woken when a step or copy that is sent now is late.
        deadline_s = now_s + self._settings.step_deadline_s
        if step_group.set_alarm(deadline_s, now_s):
            self._timers.add(deadline_s)
        return send(step_group, drafts, now_s)
