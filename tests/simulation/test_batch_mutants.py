"""Mutants of decisions about several events at once: workloads where many come together find them.

In each of these a core that is told one event at a time does no wrong.
"""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.events import Effect, Event
from tests.simulation.faults import Faults
from tests.simulation.test_mutants import SMALL_L1, Case, find
from tests.simulation.workload import Workload

TOGETHER = Workload(
    seed=0,
    settings=replace(SMALL_L1, num_lanes=3),
    storage=None,
    faults=Faults(turn_s=0.01, together_fraction=1.0),
    num_requests=40,
    num_rank_kills=2,
    num_rank_flaps=6,
)


def an_event_of_several_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of the events that are heard at once replaces those before it."""
    hear, decide = SchedulerCore.hear, SchedulerCore.decide
    waiting: dict[SchedulerCore, tuple[Event, float]] = {}

    def keep_last(self: SchedulerCore, event: Event, now_s: float) -> None:
        waiting[self] = (event, now_s)

    def decide_about_last(self: SchedulerCore, now_s: float) -> list[Effect]:
        if self in waiting:
            hear(self, *waiting.pop(self))
        return decide(self, now_s)

    monkeypatch.setattr(SchedulerCore, "hear", keep_last)
    monkeypatch.setattr(SchedulerCore, "decide", decide_about_last)


def plans_come_before_all_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core plans after each event, and sends what it has planned after the last."""
    hear, decide = SchedulerCore.hear, SchedulerCore.decide
    planned: dict[SchedulerCore, list[Any]] = {}

    def hear_and_plan(self: SchedulerCore, event: Event, now_s: float) -> None:
        hear(self, event, now_s)
        planned.setdefault(self, []).extend(decide(self, now_s))

    def send(self: SchedulerCore, now_s: float) -> list[Effect]:
        return planned.pop(self, [])

    monkeypatch.setattr(SchedulerCore, "hear", hear_and_plan)
    monkeypatch.setattr(SchedulerCore, "decide", send)


CASES = [
    Case(mutant=an_event_of_several_is_lost, workload=TOGETHER),
    Case(mutant=plans_come_before_all_is_heard, workload=TOGETHER),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
