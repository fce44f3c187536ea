"""Mutants of scheduling policies: crowded queues find them."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.scheduler.queue import prefix_turns, response_turns
from raydix.runtime.scheduler.queue.prefix_turns import PrefixTurns
from raydix.runtime.scheduler.request import request_order
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload

CROWDED = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_lanes=1, max_running_requests=2, ageing_s=0.3),
    num_requests=48,
    check_interval=1,
)


def under(policy: SchedulingPolicy) -> Workload:
    """Many wait for two slots."""
    return replace(CROWDED, settings=replace(CROWDED.settings, policy=policy))


def ageing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer may overtake whoever has waited for ever."""
    monkeypatch.setattr(request_order, "level_of", lambda request, settings: 0)


def cached_pages_are_not_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts go by their length, whatever is cached of them."""
    monkeypatch.setattr(request_order, "num_to_compute", lambda num_tokens, *rest: num_tokens)


def sizes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is of the time that was waited alone."""
    monkeypatch.setattr(response_turns, "wait_per_token", lambda waited_s, num_tokens: waited_s)


def ratios_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is chosen as if it were the time at which the run began."""
    first = response_turns.ResponseTurns.first
    monkeypatch.setattr(response_turns.ResponseTurns, "first", lambda self, now_s: first(self, 0.0))


def branches_do_not_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefix that came first goes first, whoever shares it."""
    monkeypatch.setattr(prefix_turns, "branch_key", lambda num_requests, first: (0, first))


def prefixes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are entered as if they shared nothing."""
    put = PrefixTurns.put

    def put_alone(self: PrefixTurns, request: Any, key: Any, prefix_keys: Any) -> None:
        put(self, request, key, ())

    monkeypatch.setattr(PrefixTurns, "put", put_alone)


CASES = [
    Case(mutant=ageing_is_forgotten, workload=under(SchedulingPolicy.SHORTEST_PREFILL)),
    Case(mutant=ageing_is_forgotten, workload=under(SchedulingPolicy.HRRN)),
    Case(mutant=ageing_is_forgotten, workload=under(SchedulingPolicy.DFS_WEIGHT)),
    Case(mutant=cached_pages_are_not_subtracted, workload=under(SchedulingPolicy.SHORTEST_PREFILL)),
    Case(mutant=sizes_do_not_matter, workload=under(SchedulingPolicy.HRRN)),
    Case(mutant=ratios_stand_still, workload=under(SchedulingPolicy.HRRN)),
    Case(mutant=branches_do_not_weigh, workload=under(SchedulingPolicy.DFS_WEIGHT)),
    Case(mutant=prefixes_are_forgotten, workload=under(SchedulingPolicy.DFS_WEIGHT)),
]


@pytest.mark.part
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.mutant.__name__}-{case.workload.settings.policy}"
)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
