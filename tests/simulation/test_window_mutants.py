"""Broken rules about windows, each found by random workloads as in `test_mutants`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.scheduler.life import publishing, transitions
from raydix.runtime.scheduler.pages.backups import BackupQueue
from raydix.runtime.scheduler.request.request import RequestState
from tests.simulation.layouts import FULL_AND_LATENT, FULL_AND_WINDOW, WINDOWED
from tests.simulation.test_mutants import (
    NO_QUARANTINE,
    SLOW_COPIES,
    Case,
    find,
    no_quarantine,
    one_rank_acknowledgement,
)
from tests.simulation.workload import BASE_SETTINGS, Workload

MIXED = replace(
    BASE_SETTINGS,
    layout=FULL_AND_WINDOW,
    num_pages=(40, 12),
    num_lanes=1,
)
OF_TWO_RANKS = replace(
    MIXED,
    layout=replace(FULL_AND_LATENT, groups=(*FULL_AND_LATENT.groups, WINDOWED)),
    num_pages=(40, 40, 14),
    ranks_per_lane=2,
)
"""Whole pages, windows, and latents of which each rank copies a share for the other."""


def pins_a_page_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree lets the first page of a window go while steps in flight still read it."""
    make = RadixTree.__init__

    def make_short(self: RadixTree, *, reaches: Sequence[int | None], **fields: Any) -> None:
        make(
            self,
            reaches=[None if reach is None else reach - 1 for reach in reaches],
            **fields,
        )

    monkeypatch.setattr(RadixTree, "__init__", make_short)


def windows_are_left_a_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request gives a page back that its next row still reads."""
    needed = publishing.first_needed

    def early(reaches: Any, end: int) -> list[int]:
        return [start and start + 1 for start in needed(reaches, end)]

    monkeypatch.setattr(publishing, "first_needed", early)


def pending_loads_are_backed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends leaves L2 the window that it was still loading."""
    keep = publishing.keep_window

    def keep_all(lane: Any, request: Any, end: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RequestState, "unhealed", ())
            keep(lane, request, end)

    for module in (publishing, transitions):
        monkeypatch.setattr(module, "keep_window", keep_all)


def evicted_windows_are_backed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a window stays in the queue for L2 when another one takes its place."""
    forget = BackupQueue.forget

    def forget_removed(self: BackupQueue, victim: Any) -> None:
        if victim.is_removed:
            forget(self, victim)

    monkeypatch.setattr(BackupQueue, "forget", forget_removed)


CASES = [
    Case(
        mutant=pins_a_page_short,
        workload=Workload(seed=0, settings=MIXED, storage=None, num_requests=40, span_s=0.5),
    ),
    Case(
        mutant=windows_are_left_a_page_early,
        workload=Workload(
            seed=59, settings=replace(MIXED, prefix_caching=False), storage=None, num_requests=40
        ),
    ),
    Case(
        mutant=pending_loads_are_backed_up,
        workload=Workload(
            seed=159,
            settings=replace(MIXED, num_pages=(64, 12)),
            storage=None,
            faults=SLOW_COPIES,
            num_host_kills=6,
            num_requests=60,
            num_prefixes=6,
            prefix_tokens=(40,),
            abort_fraction=0.7,
        ),
    ),
    Case(
        mutant=evicted_windows_are_backed_up,
        workload=Workload(seed=0, settings=MIXED, l2_pages=16, storage=None, num_requests=40),
    ),
    # What `test_mutants` breaks shows with windows, too.
    Case(mutant=no_quarantine, workload=replace(NO_QUARANTINE.workload, seed=1, settings=MIXED)),
    Case(
        mutant=one_rank_acknowledgement,
        workload=Workload(
            seed=0, settings=OF_TWO_RANKS, storage=None, faults=SLOW_COPIES, salt_fraction=0.0
        ),
    ),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
