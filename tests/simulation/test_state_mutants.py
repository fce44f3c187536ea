"""Broken rules about states of layers, each found by random workloads as in `test_mutants`.

A state tells of all tokens up to one place. Whoever goes on from there must find it as it was.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache import kv_match
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.scheduler.life import publishing
from raydix.runtime.scheduler.pages import page_needs
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources import cached_prefix
from tests.simulation.layouts import STATEFUL, TWO_GROUPS
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload

STATE = 1
MIXED = replace(
    BASE_SETTINGS,
    layout=replace(TWO_GROUPS, groups=(TWO_GROUPS.groups[0], replace(STATEFUL, head_dim=256))),
    num_pages=(64, 24),
    num_lanes=1,
)
BUSY = Workload(seed=0, settings=MIXED, storage=None, num_requests=40, span_s=0.5)


def prompts_are_taken_up_at_their_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of a cached prompt is computed anew, though the state has it already."""
    monkeypatch.setattr(
        SchedulerSettings, "reusable_pages", lambda self, num_tokens: num_tokens // self.page_size
    )


def states_are_taken_a_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has a page for the state before the last page of a step, in place of the last."""
    places_of = page_needs.places_of_states

    def early(start: int, stop: int, distance: int, others: Collection[int]) -> Sequence[int]:
        return sorted({max(start, place - 1) for place in places_of(start, stop, distance, others)})

    monkeypatch.setattr(page_needs, "places_of_states", early)


def states_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run goes on in the page of the state before, which others may share."""
    grow = Lane.grow_table

    def grow_in_place(self: Lane, request: RequestState, num_more: int) -> bool:
        start = len(request.table)
        has_grown = grow(self, request, num_more)
        states = request.table._page_ids[STATE]
        if has_grown and start and len(states) > start and states[start - 1]:
            states[start] = states[start - 1]
        return has_grown

    monkeypatch.setattr(Lane, "grow_table", grow_in_place)


def prefixes_need_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix is taken up where its keys and values end, whether or not a state is there."""
    longest = kv_match.longest_prefix

    def without_states(reaches: Sequence[Any], gaps: Sequence[bytes], max_pages: int) -> int:
        return longest(reaches[:STATE], gaps[:STATE], max_pages)

    monkeypatch.setattr(kv_match, "longest_prefix", without_states)
    monkeypatch.setattr(
        cached_prefix, "last_window_end", lambda has_page, reach, max_pages: max_pages
    )


def states_are_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run gives the state back from which its next row goes on."""
    needed = publishing.first_needed
    monkeypatch.setattr(
        publishing,
        "first_needed",
        lambda reaches, end: (
            [0 if reach is None else end for reach in reaches] if end else needed(reaches, end)
        ),
    )


MUTANTS = [
    prompts_are_taken_up_at_their_last_token,
    states_are_taken_a_page_early,
    states_are_written_in_place,
    prefixes_need_no_state,
    states_are_given_up_at_once,
]


def test_the_layout_has_a_state() -> None:
    assert MIXED.layout.groups[STATE].kind is GroupKind.STATE


@pytest.mark.part
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find(Case(mutant=mutant, workload=BUSY), monkeypatch)
