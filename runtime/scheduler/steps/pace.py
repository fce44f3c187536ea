"""When the next steps with rows are planned: how far ahead of the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.runtime.scheduler.ranks.in_flight import InFlight
from raydix.runtime.scheduler.rates import Rates

_PLANS_AHEAD = 2
"""The number of plans with rows in flight: one runs and one is queued behind it. If their steps are
short, or ranks make masks between them, a third is queued.
"""
_TURN_S = 1.25e-3
"""Seconds between a step's end and the start of the step that is planned with its result (H200
host: 0.9 to 1.4 ms in half of all cases, 2026-11). A step in between that is shorter than this
leaves the device idle.
"""


@dataclass(frozen=True, slots=True)
class Due:
    """What may be planned now for a step group."""

    num_row_plans: int
    """The number of plans with rows in flight."""
    takes_rows: bool
    """Whether another step with rows may be sent; if not, copies alone may."""


def what_is_due(
    flights: Sequence[InFlight], rates: Rates, now_s: float, *, wants_rows: bool, has_masks: bool
) -> Due | None:
    """What may be planned, given what the lanes of a step group have in flight; None: nothing.

    `wants_rows`: whether a plan with rows is wanted, although ranks may repeat the last one.
    `has_masks`: whether grammars' masks are made for rows of a lane.
    """
    # A plain loop, as here and below each event comes by.
    num_row_plans, has_loads = 0, False
    for flight in flights:
        if flight.num_row_plans > num_row_plans:
            num_row_plans = flight.num_row_plans
        if flight.ready_loads:
            has_loads = True
    takes_rows = wants_rows and (
        num_row_plans < _PLANS_AHEAD
        or (
            num_row_plans == _PLANS_AHEAD
            # A rank that makes a mask for each step takes the next plan late, however long the
            # device takes for it: if the plan is on its way then, the device waits for both.
            and (has_masks or _are_short(flights, rates, now_s))
            and _decode_alone(flights)
        )
    )
    return Due(num_row_plans, takes_rows) if takes_rows or has_loads else None


def _decode_alone(flights: Sequence[InFlight]) -> bool:
    """Whether no step in flight computes more than a token of each row.

    A step that computes prompts is not short, and another one ahead of it gains nothing.
    """
    steps = [step for flight in flights for step in flight.steps.values()]
    return all(step.num_rows >= step.num_tokens for step in steps)


def _are_short(flights: Sequence[InFlight], rates: Rates, now_s: float) -> bool:
    """Whether the steps in flight, of which some have rows, take less than a turn each.

    Whatever is answered, the next step that decodes shows its time.
    """
    most_tokens = 0
    for flight in flights:
        for step in flight.steps.values():
            if step.most_tokens > most_tokens:
                most_tokens = step.most_tokens
    return rates.decode.predict_s(most_tokens, now_s) < _TURN_S
