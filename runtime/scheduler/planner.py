"""The planner of a Scheduler, put together of the parts that admit, draft and copy."""

from collections.abc import Sequence

from raydix.runtime.scheduler.counters import Counters
from raydix.runtime.scheduler.life.admission_turns import AdmissionTurns
from raydix.runtime.scheduler.life.attempts import Attempts
from raydix.runtime.scheduler.life.facts import Looks
from raydix.runtime.scheduler.life.load_ahead import LoadAhead
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.copies import CopyDrafter
from raydix.runtime.scheduler.steps.drafts import Drafter
from raydix.runtime.scheduler.steps.planning import Planner
from raydix.runtime.scheduler.timers import Timers


def make_planner(
    settings: SchedulerSettings,
    *,
    requests: Requests,
    lanes: Sequence[Lane],
    source: KvSource,
    rates: Rates,
    choice: LoadChoice,
    life: Transitions,
    timers: Timers,
    counters: Counters,
) -> Planner:
    """Make the planner of these lanes, which admits requests as it plans."""
    attempts = Attempts(
        settings,
        requests=requests,
        looks=Looks(settings, requests, choice, source.view, rates),
        ahead=LoadAhead(settings, choice=choice, life=life, timers=timers),
        life=life,
        counters=counters,
    )
    drafter = Drafter(
        settings,
        rates=rates,
        turns=AdmissionTurns(settings, attempts, source=source, life=life, timers=timers),
        life=life,
        timers=timers,
        counters=counters,
    )
    return Planner(
        settings,
        lanes=lanes,
        rates=rates,
        rows=drafter,
        copies=CopyDrafter(num_lanes=len(lanes), requests=requests, source=source),
        timers=timers,
    )
