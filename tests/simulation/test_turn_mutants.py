"""Mutants of prompts that go through L2 by turns: workloads where L2 is smaller find them."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import ConnectionId
from raydix.runtime.messages.host import Urgency
from raydix.runtime.scheduler.pages.promotion import Promotions
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Load
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.copies import CopyDrafter
from tests.simulation.faults import Faults
from tests.simulation.test_mutants import FROM_STORAGE, Case, find
from tests.simulation.workload import Workload

THROUGH_L2 = Workload(
    seed=0,
    settings=replace(
        FROM_STORAGE,
        num_lanes=1,
        num_pages=(100,),
        max_model_len=264,
        prefill_budget_tokens=64,
        min_part_bytes=8 << 20,
    ),
    l2_pages=12,
    faults=Faults(storage_s=0.0003, copy_s=0.02),
    span_s=6.0,
    prefix_tokens=(80, 180, 232),
    max_suffix_tokens=8,
    max_output_tokens=10,
    hint_fraction=0.0,
    salt_fraction=0.0,
    num_flushes=8,
)


def turns_release_what_is_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next turn has the room in L2 of the one before once that one's load is sent."""
    take_loads = CopyDrafter._take_loads

    def take(self: CopyDrafter, lane: Lane) -> list[Load]:
        loads = take_loads(self, lane)
        for load in loads:
            if lane.promotions.of_load(load) is not None:
                self._source.release_lease(load.lease_id, load.host_connection)
                load.host_connection = ConnectionId(-1)
                lookup_rest(self._source, lane, self._requests.living[load.request_id])
        return loads

    def lookup_rest(source: KvSource, lane: Lane, request: RequestState) -> None:
        if request.prefetch.is_halted:
            request.prefetch.make_due_again()
            source._lookups.enqueue(request, (), lane.waiting.key(request))
            while (due := source.next_to_look_up()) is not None:
                source.send_lookup(due, lane.match(due.chain), Urgency.REQUEST)

    monkeypatch.setattr(CopyDrafter, "_take_loads", take)


def who_loses_its_turn_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promotion gives way, and its request, whose lookup has ended, is not looked at again."""
    give_way, wake = Promotions.give_way, WaitingQueue.wake

    def give_way_quietly(self: Promotions, num_pages: Any) -> None:
        with monkeypatch.context() as quiet:
            quiet.setattr(
                WaitingQueue,
                "wake",
                lambda queue, request: None if request.prefetch.is_halted else wake(queue, request),
            )
            give_way(self, num_pages)

    monkeypatch.setattr(Promotions, "give_way", give_way_quietly)


CASES = [
    Case(mutant=turns_release_what_is_being_loaded, workload=THROUGH_L2),
    Case(
        mutant=who_loses_its_turn_is_not_woken,
        workload=replace(
            THROUGH_L2,
            seed=8,
            settings=replace(THROUGH_L2.settings, num_pages=(66,)),
            num_requests=48,
            span_s=3.0,
        ),
    ),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
