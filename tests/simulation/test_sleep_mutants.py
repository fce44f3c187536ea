"""Engines that sleep and wake, and broken rules of that, found by random workloads."""

import math
from dataclasses import replace

import pytest

from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler import sleep
from raydix.runtime.scheduler.life.placing import Placing
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.sleep import Progress, Sleep
from tests.simulation.faults import Faults
from tests.simulation.sleeping import draw_sleeping_workload
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload

CALM = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_lanes=2, ranks_per_lane=2, max_asleep_wait_s=1000.0),
    l2_pages=300,
    storage=None,
    faults=Faults(link_delay_s=0.0005, step_s=0.003, copy_s=0.02),
    span_s=3.0,
    num_sleeps=3,
)
"""Nothing happens but sleep, and L2 has room for all of L1."""

LATE = replace(CALM, settings=replace(CALM.settings, write_policy=WritePolicy.WRITE_BACK))
"""L2 lacks most of L1 until the engine falls asleep."""


HASTY = replace(CALM, settings=replace(CALM.settings, max_asleep_wait_s=0.05, max_drain_s=0.01))
"""Requests are parked in the midst of their output, and others may hardly wait."""


def nothing_is_backed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What L1 has goes with its memory."""
    monkeypatch.setattr(Lane, "back_up_all", lambda self: None)


def requests_get_lanes_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while the engine sleeps is placed as ever."""
    place = Placing.place_some

    def place_always(self: Placing, now_s: float, *, until_s: float) -> int:
        return place(self, now_s)

    monkeypatch.setattr(Placing, "place_some", place_always)


def asleep_before_ranks_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine counts as asleep when ranks have only been told to give memory back."""
    following = sleep.next_phase

    def hasty(phase: Phase, progress: Progress) -> Phase:
        if phase is Phase.GIVING_BACK:
            return Phase.ASLEEP
        return following(phase, progress)

    monkeypatch.setattr(sleep, "next_phase", hasty)


def sleepers_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that hangs up to sleep counts as lost, and those that step with it end."""
    monkeypatch.setattr(Sleep, "ranks_may_leave", property(lambda self: False))


def unfinished_work_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes while pages still wait for their copy."""
    monkeypatch.setattr(Sleep, "_num_to_back_up", lambda self, now_s: 0)


def drains_know_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is to sleep waits until the last request has ended."""
    monkeypatch.setattr(Sleep, "_drained_until_s", math.inf)


def parked_requests_wait_no_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was parked is refused as those are that came later."""
    refuse = Sleep._refuse_late

    def refuse_all(self: Sleep, now_s: float) -> None:
        since_s, self._since_s = self._since_s, -math.inf
        refuse(self, now_s)
        self._since_s = since_s

    monkeypatch.setattr(Sleep, "_refuse_late", refuse_all)


def nobody_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests stay on their lanes when their time is over."""
    monkeypatch.setattr(sleep, "park", lambda lane, life: None)


def nobody_looks_again_for_the_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late request is refused with whatever happens next, and nothing is made to happen."""

    def let_wait(self: Sleep, until_s: float) -> None:
        self._none_late_until_s = until_s

    monkeypatch.setattr(Sleep, "_let_wait", let_wait)


def who_comes_later_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once nobody is late nobody ever will be."""
    monkeypatch.setattr(
        Sleep, "_let_wait", lambda self, until_s: setattr(self, "_none_late_until_s", math.inf)
    )


CASES = [
    Case(mutant=nothing_is_backed_up, workload=LATE),
    Case(mutant=requests_get_lanes_asleep, workload=CALM),
    Case(mutant=asleep_before_ranks_have_gone, workload=CALM),
    Case(mutant=unfinished_work_is_given_back, workload=LATE),
    Case(mutant=drains_know_no_end, workload=HASTY),
    Case(mutant=parked_requests_wait_no_longer_than_others, workload=HASTY),
    Case(mutant=nobody_is_parked, workload=HASTY),
    Case(mutant=nobody_looks_again_for_the_late, workload=HASTY),
    Case(mutant=who_comes_later_is_not_looked_at, workload=HASTY),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)


@pytest.mark.part
@pytest.mark.parametrize("seed", range(0, 18, 3))
def test_engines_that_sleep_end_exactly(seed: int) -> None:
    for each in range(seed, seed + 3):
        run_workload(draw_sleeping_workload(each))


def test_only_sleepers_hang_up_in_a_calm_run() -> None:
    cluster = run_workload(CALM)
    assert cluster.num_faults == {"engine slept": CALM.num_sleeps}
    assert cluster.count("lost_ranks") == 0


def test_sleepers_that_count_as_lost_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sleepers_are_killed(monkeypatch)
    cluster = run_workload(CALM)
    assert cluster.num_faults["GPU actor killed"] > 0
