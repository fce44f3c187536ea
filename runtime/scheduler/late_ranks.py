"""Ranks that owe an answer for too long, and so are to end."""

from collections.abc import Sequence

from raydix.runtime.scheduler.events import KillCause, KillRank
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.timers import Timers

_PATIENCE = 10
"""A step or copy is late once it has taken this many times as long as predicted."""
_Due = tuple[float, str, set[int]]
"""The time at which something is due, its name, and the ranks that owe it."""


class LateRanks:
    """Finds ranks that are late, and has them ended."""

    def __init__(
        self,
        settings: SchedulerSettings,
        lanes: Sequence[Lane],
        step_groups: Sequence[StepGroup],
        rates: Rates,
        outbox: Outbox,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._step_groups = step_groups
        self._rates = rates
        self._outbox = outbox
        self._timers = timers

    def condemn(self, now_s: float) -> None:
        """End ranks that take too long over the oldest step of their step group, or over a copy."""
        for step_group in self._step_groups:
            lanes = [lane for lane in step_group.pick(self._lanes) if not lane.in_flight.is_empty]
            if lanes:
                self._condemn_of(step_group, lanes, now_s)

    def _condemn_of(self, step_group: StepGroup, lanes: list[Lane], now_s: float) -> None:
        settings = self._settings
        deadline_s = (
            settings.step_deadline_s if step_group.is_warm else settings.first_step_deadline_s
        )
        due_s, what, ranks = min(self._dues(lanes, deadline_s, now_s), key=lambda due: due[0])
        is_late = due_s <= now_s

        # A rank that is condemned now may not end, and the deadline becomes shorter when the first
        # step has ended: look again after a while in both cases.
        look_again_s = now_s + settings.step_deadline_s
        if step_group.is_warm and not is_late:
            look_again_s = due_s
        self._look_again(step_group, look_again_s, now_s)
        for rank in sorted(ranks) if is_late else ():
            incarnation = step_group.attached[rank].incarnation
            reason = f"{what} has not been acknowledged; it was due {now_s - due_s:.1f} s ago"
            cause = KillCause.LATE
            self._outbox.emit(
                KillRank(rank=rank, incarnation=incarnation, cause=cause, reason=reason)
            )

    def _look_again(self, step_group: StepGroup, time_s: float, now_s: float) -> None:
        if step_group.set_alarm(time_s, now_s):
            self._timers.add(time_s)

    def _dues(self, lanes: list[Lane], deadline_s: float, now_s: float) -> list[_Due]:
        """The times at which a step group's oldest step and each lane's oldest copy are due.

        A prediction only makes the wait longer than the deadline that is set: one that is too short
        condemns nobody. One that is too long is corrected by the next quick step or load.
        """
        dues: list[_Due] = []
        oldest = [step for lane in lanes if (step := lane.in_flight.oldest_step) is not None]
        if oldest:
            # A lane that has done this step waits in the next one, which begins once all have.
            number = min([step.step for step in oldest])
            steps = [step for step in oldest if step.step == number]
            predicted_s = self._rates.prefill.predict_s(steps[0].most_tokens, now_s)
            started_s = max([step.started_s for step in steps])
            ranks = {rank for step in steps for rank in step.waiting_ranks}
            patience_s = max(deadline_s, _PATIENCE * predicted_s)
            # A step that waits for a load has not begun: only the load can be late.
            if not any(step.loads for step in steps):
                dues.append((started_s + patience_s, f"step {number}", ranks))

        for lane in lanes:
            copy = lane.in_flight.oldest_transfer
            if copy is not None and copy.first_s is not None:
                # A rank makes its copies one after the other: the oldest is the one that has begun.
                predicted_s = self._rates.load.predict_s(
                    self._settings.bytes_of(map(len, copy.page_ids)), now_s
                )
                patience_s = max(deadline_s, _PATIENCE * predicted_s)
                what = f"transfer {copy.transfer_id}"
                dues.append((copy.first_s + patience_s, what, copy.waiting_ranks))
        return dues
