"""Mutants of the table of states: random workloads find each move left out and each owner not told.

A move too many is found by `test_every_move_is_taken`, which compares the table with what is done.
"""

from collections.abc import Mapping

import pytest

from raydix.errors import AccountingError
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.pages.promotion import Promotions
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.ranks.in_flight import InFlight
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request import state
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.state import MOVES, State
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers
from tests.simulation.test_life import (
    ALL_MOVES,
    MAX_SEEDS,
    SEEDS,
    end_early,
    untaken_moves,
)
from tests.simulation.test_mutants import FOUND
from tests.simulation.workload import draw_workload, run_workload

OWNERS: list[tuple[type, str]] = [
    (Requests, "place"),
    (Requests, "displace"),
    (Requests, "remove"),
    (WaitingQueue, "add"),
    (WaitingQueue, "admit"),
    (WaitingQueue, "stop_running"),
    (WaitingQueue, "discard"),
    (Promotions, "end"),
    (Lane, "release"),
    (InFlight, "add_load"),
    (RequestState, "move_to"),
    (RequestState, "lose_lane"),
    (RequestState, "wait_for_lease"),
    (RequestState, "wait_for_load"),
    (RequestState, "stop_running"),
    (RequestState, "end"),
    (KvSource, "forget"),
    (KvSource, "cancel_lookup"),
    (Timers, "forget"),
]
"""What transitions tell each owner: the class, and the method."""


def table_without(former: State, new: State) -> Mapping[State, Mapping[State, str]]:
    """The table less one move."""
    kept = {each: move for each, move in MOVES[former].items() if each is not new}
    return {**MOVES, former: kept}


def run_seeds() -> None:
    """Run many workloads."""
    for seed in range(MAX_SEEDS):
        run_workload(draw_workload(seed))


def take_every_move() -> None:
    """Make requests take those moves, too, that workloads hardly ever have."""
    end_early()
    for seed in SEEDS:
        run_workload(draw_workload(seed))


@pytest.mark.part
@pytest.mark.parametrize(
    ("former", "new"),
    sorted(ALL_MOVES, key=lambda move: (move[0].value, move[1].value)),
    ids=lambda each: each.value,
)
def test_a_move_left_out_is_found(
    former: State, new: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOVES", table_without(former, new))

    with pytest.raises(AccountingError, match=f"from {former.value} to {new.value}"):
        take_every_move()


def test_a_move_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    too_many = (State.LOADING, State.DECODING)

    assert untaken_moves(ALL_MOVES | {too_many}, monkeypatch, max_seeds=5) >= {too_many}


@pytest.mark.part
@pytest.mark.parametrize(
    ("owner", "method"), OWNERS, ids=lambda each: getattr(each, "__name__", each)
)
def test_an_owner_not_told_is_found(
    owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, lambda self, *arguments, **named: None)

    with pytest.raises(FOUND):
        run_seeds()
