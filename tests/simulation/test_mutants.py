"""Tests of the tests: random workloads on the simulated cluster find each of these bugs.

A mutant's workload provokes what its rule protects against. The engine without the mutant passes
the same seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.ids import ConnectionId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.arrays import empty, int32_array
from raydix.runtime.messages.plan import AddedRequest
from raydix.runtime.scheduler.rank_events import RankEvents
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.steps.copies import CopyDrafter
from raydix.runtime.scheduler.steps.planning import Planner
from raydix.runtime.scheduler.steps.step_results import StepResults
from raydix.runtime.scheduler.steps.transfer_results import TransferResults
from tests.simulation.faults import Faults
from tests.simulation.layouts import LATENT
from tests.simulation.ranks import SimulatedRank
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload

MAX_SEEDS = 1000
Patch = Callable[[pytest.MonkeyPatch], None]

SMALL_L1 = replace(BASE_SETTINGS, num_pages=(30,))
FROM_STORAGE = replace(
    BASE_SETTINGS, prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE)
)
SLOW_COPIES = Faults(copy_s=0.1, link_delay_s=0.0005)


def no_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A released GPU page is free at once, whatever steps in flight still do with it."""
    release = PagePool.release
    monkeypatch.setattr(
        PagePool,
        "release",
        lambda self, page_ids, *, after_step: release(self, page_ids, after_step=-1),
    )


def rows_on_their_way_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a request that has ended are free at once, though a step in flight names them."""
    monkeypatch.setattr(RequestState, "has_rows_in_flight", False)


def commit_before_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup's pages are published in L2 when the backup is ordered."""
    next_plans = Planner.next_plans

    def commit_and_plan(self: Planner, group: Any, now_s: float) -> Any:
        plans = next_plans(self, group, now_s)
        for lane, plan in plans:
            for transfer_id in dict.fromkeys(plan.backups.transfer_ids.tolist()):
                for commit in lane.in_flight.transfers[transfer_id].commits():
                    self._copies._source.tell(commit)
        return plans

    monkeypatch.setattr(Planner, "next_plans", commit_and_plan)


def end_leases_when_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a world, not a mutant: HostMemory takes its pins off once it has granted a lease."""
    lease = HostLeases.lease

    def lease_unpinned(self: HostLeases, lease_id: Any, keys: Any, starts: Any) -> Any:
        held = lease(self, lease_id, keys, starts)
        self.end(lease_id)
        lease(self, lease_id, (), [0] * len(starts))
        return held

    monkeypatch.setattr(HostLeases, "lease", lease_unpinned)


def no_generation_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU actor does not compare the generations of the host pages that it has read."""
    monkeypatch.setattr(SimulatedRank, "is_stale", lambda self, entries: False)


def one_rank_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer counts as done once the first rank of its lane has done it."""
    take = TransferResults.take

    def take_first(self: TransferResults, lane: Any, done: Any, now_s: float) -> None:
        known = [
            transfer_id
            for transfer_id in done.transfer_ids.tolist()
            if transfer_id in lane.in_flight.transfers
        ]
        for transfer_id in known:
            lane.in_flight.transfers[transfer_id].waiting_ranks = {done.rank}
        take(self, lane, replace(done, transfer_ids=int32_array(known)), now_s)

    monkeypatch.setattr(TransferResults, "take", take_first)


def abandon_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a rank group is lost, host pages wait for the exit of its first process alone."""
    pids = Lane.pids.fget
    assert pids is not None
    monkeypatch.setattr(Lane, "pids", property(lambda lane: pids(lane)[:1]))


def abandon_for_the_dead_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a rank is lost, host pages wait for its exit alone, while its peers may still copy."""
    lose_rank = RankEvents._lose_rank

    def lose(self: RankEvents, rank: int) -> None:
        pids = (self._step_group_of(rank).attached[rank].pid,)
        with monkeypatch.context() as of_one:
            of_one.setattr(Lane, "pids", property(lambda lane: pids))
            lose_rank(self, rank)

    monkeypatch.setattr(RankEvents, "_lose_rank", lose)


def scored_prompts_from_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for logprobs of its prompt takes all that is cached, whose logits are gone."""
    everything = property(lambda request: request.num_tokens)
    monkeypatch.setattr(RequestState, "max_cached_tokens", everything)


def scores_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks score a prompt from its start in each run of its request."""
    introduce = RequestState.introduce

    def forget(request: RequestState) -> AddedRequest | None:
        added = introduce(request)
        return None if added is None else replace(added, num_scored_tokens=0)

    monkeypatch.setattr(RequestState, "introduce", forget)


def early_lease_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is given back when its load is sent."""
    take_loads = CopyDrafter._take_loads

    def take(self: CopyDrafter, lane: Any) -> Any:
        loads = take_loads(self, lane)
        for load in loads:
            self._source.release_lease(load.lease_id, load.host_connection)
            load.host_connection = ConnectionId(
                -1
            )  # nothing is left to be released when it is done
        return loads

    monkeypatch.setattr(CopyDrafter, "_take_loads", take)


def publish_parts_when_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded ahead for a waiting request counts as cached when its copy is ordered."""
    take_loads = CopyDrafter._take_loads

    def take(self: CopyDrafter, lane: Any) -> Any:
        loads = take_loads(self, lane)
        for load in loads:
            promotion = lane.promotions.of_load(load)
            if promotion is not None:
                lane.promotions.publish(promotion, 0.0)
        return loads

    monkeypatch.setattr(CopyDrafter, "_take_loads", take)


def chunks_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the numbers behind a prompt's last token tell whether its pages are fine."""
    take_whole = StepResults.take

    def take(self: StepResults, lane: Any, result: Any, now_s: float) -> None:
        take_whole(self, lane, replace(result, not_finite_slots=empty()), now_s)

    monkeypatch.setattr(StepResults, "take", take)


def never_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait for L3 keep what was loaded ahead for them, whoever needs the pages."""
    monkeypatch.setattr(Lane, "give_way", lambda self, num_pages: None)


def head_first_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A use of a chain touches its first page first."""
    touch_chain = HostIndex.touch_chain
    monkeypatch.setattr(
        HostIndex,
        "touch_chain",
        lambda self, group, keys, *user: touch_chain(self, group, keys[::-1], *user),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A mutant, the world it lives in, and a workload that makes it matter."""

    mutant: Patch
    workload: Workload
    """The workload with the seed where the search begins: those before the one that finds it only
    take time.
    """
    world: Patch = lambda monkeypatch: None


NO_QUARANTINE = Case(
    mutant=no_quarantine,
    workload=Workload(
        seed=0,
        settings=replace(SMALL_L1, num_lanes=1),
        l2_pages=200,
        storage=None,
        faults=Faults(step_s=0.05, copy_s=0.005, link_delay_s=0.0005),
        num_requests=48,
        abort_fraction=0.5,
        stop_fraction=0.5,
    ),
)
COPIES_AT_DEATH = Workload(
    seed=0,
    settings=replace(SMALL_L1, ranks_per_lane=2, num_lanes=3),
    l2_pages=40,
    storage=None,
    faults=Faults(copy_s=0.6, linger_s=2.4, last_copy_s=1.2, link_delay_s=0.0005),
    num_rank_kills=16,
    num_requests=80,
    span_s=4.0,
    num_prefixes=12,
    prefix_tokens=(24, 40),
    max_output_tokens=12,
    salt_fraction=0.0,
    abort_fraction=0.0,
    stop_fraction=0.0,
)
"""Ranks die while they and their peers copy, and other lanes soon want the host pages."""
CASES = [
    Case(mutant=rows_on_their_way_are_forgotten, workload=NO_QUARANTINE.workload),
    NO_QUARANTINE,
    Case(
        mutant=commit_before_acknowledgement,
        workload=Workload(seed=0, settings=BASE_SETTINGS, storage=None, faults=SLOW_COPIES),
    ),
    Case(
        mutant=no_generation_check,
        world=end_leases_when_granted,
        workload=Workload(
            seed=7,
            settings=replace(SMALL_L1, num_lanes=3),
            l2_pages=16,
            storage=None,
            faults=Faults(copy_s=0.2, link_delay_s=0.0005),
            num_requests=48,
            span_s=4.0,
            num_prefixes=6,
            prefix_tokens=(40,),
            has_sound_leases=False,
        ),
    ),
    Case(
        mutant=one_rank_acknowledgement,
        workload=Workload(
            seed=0,
            settings=replace(SMALL_L1, ranks_per_lane=2),
            storage=None,
            faults=SLOW_COPIES,
            salt_fraction=0.0,
        ),
    ),
    Case(mutant=abandon_for_one_process, workload=replace(COPIES_AT_DEATH, seed=34)),
    Case(
        mutant=one_rank_acknowledgement,
        workload=Workload(
            seed=0,
            settings=replace(SMALL_L1, layout=LATENT, ranks_per_lane=4),
            storage=None,
            faults=SLOW_COPIES,
            salt_fraction=0.0,
        ),
    ),
    # Each rank of a lane copies a share for its peers.
    Case(
        mutant=abandon_for_one_process,
        workload=replace(
            COPIES_AT_DEATH,
            seed=49,
            settings=replace(SMALL_L1, layout=LATENT, ranks_per_lane=2, num_lanes=3),
        ),
    ),
    Case(mutant=abandon_for_the_dead_rank, workload=replace(COPIES_AT_DEATH, seed=24)),
    Case(
        mutant=early_lease_end,
        workload=Workload(seed=0, settings=SMALL_L1, l2_pages=16, storage=None, faults=SLOW_COPIES),
    ),
    Case(
        mutant=head_first_touch,
        workload=Workload(seed=0, settings=SMALL_L1, l2_pages=16, storage=None),
    ),
    Case(
        mutant=publish_parts_when_sent,
        workload=Workload(
            seed=0, settings=FROM_STORAGE, faults=SLOW_COPIES, num_flushes=6, prefix_tokens=(40,)
        ),
    ),
    Case(
        mutant=never_give_way,
        workload=Workload(
            seed=6,
            settings=replace(FROM_STORAGE, num_pages=(30,)),
            faults=Faults(storage_s=0.3),
            num_flushes=6,
            num_requests=48,
            prefix_tokens=(40,),
        ),
    ),
    Case(
        mutant=scored_prompts_from_caches,
        workload=Workload(seed=0, settings=SMALL_L1, storage=None, score_fraction=0.4),
    ),
    Case(
        mutant=scores_start_over,
        workload=Workload(
            seed=0, settings=SMALL_L1, storage=None, score_fraction=0.9, num_rank_kills=3
        ),
    ),
    Case(
        mutant=chunks_are_not_looked_at,
        workload=Workload(
            seed=0,
            settings=replace(BASE_SETTINGS, prefill_budget_tokens=8),
            storage=None,
            faults=Faults(not_finite_fraction=0.02),
            prefix_tokens=(40,),
        ),
    ),
]


FOUND = (AssertionError, AccountingError, KeyError, ValueError)
"""A wrong answer, a broken invariant, a leak, a message that makes no sense where it arrives."""


def first_failing_seed(workload: Workload) -> int | None:
    """The first of `MAX_SEEDS` seeds, from the workload's own on, with which a mutant shows."""
    for seed in range(workload.seed, workload.seed + MAX_SEEDS):
        try:
            run_workload(replace(workload, seed=seed))
        except FOUND:
            return seed
    return None


def find(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seed finds the mutant; without it that seed and those tried before it pass."""
    case.world(monkeypatch)
    with monkeypatch.context() as mutated:
        case.mutant(mutated)
        seed = first_failing_seed(case.workload)
    assert seed is not None, f"{MAX_SEEDS} seeds did not find {case.mutant.__name__}"
    for sound_seed in range(case.workload.seed, seed + 1):
        run_workload(replace(case.workload, seed=sound_seed))


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
