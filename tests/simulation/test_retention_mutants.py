"""Broken rules about hints, each found by random workloads as in `test_mutants`."""

from dataclasses import replace

import pytest

from raydix.ids import RequestId, TenantId, UserId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.retention import HostRetention
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.radix_retention import RadixRetention
from raydix.runtime.config.policies import LoadPolicy, WritePolicy
from raydix.runtime.scheduler.life import early_loads, hints, retention
from raydix.runtime.scheduler.life.prefetch_states import PrefetchProgress, PrefetchStates
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request import users
from raydix.runtime.scheduler.request.transfers import Load
from raydix.runtime.scheduler.steps.copies import CopyDrafter
from raydix.runtime.storage.capacity.stored_objects import StoredObjects
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, STORAGE, Workload

BUSY = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_lanes=1, max_kept_fraction=0.3),
    storage=None,
    retention_fraction=1.0,
    salt_fraction=0.7,
    num_requests=60,
    span_s=2.0,
)
ROOMY = replace(BUSY, settings=replace(BUSY.settings, num_pages=(400,)))
"""L1 has room for what was kept of branches that sessions have left."""
STORING = replace(BUSY, storage=STORAGE, max_objects=40)
"""L3 has no room for all."""
RESUMING = replace(
    BUSY,
    settings=replace(
        BUSY.settings,
        num_pages=(40,),
        load=LoadPolicy.ALWAYS,
        write_policy=WritePolicy.WRITE_THROUGH,
    ),
    l2_pages=200,
    salt_fraction=0.1,
    span_s=20.0,
)
"""L1 loses much of what L2 keeps while sessions rest."""
PINNING = replace(BUSY, hint_fraction=1.0)
"""Many prompts are pinned."""


def pins_outlive_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given up for later keeps stays kept."""
    add = KeepBudget.add

    def add_and_say_nothing(self: KeepBudget, keep: Keep) -> list[Keep]:
        add(self, keep)
        return []

    monkeypatch.setattr(KeepBudget, "add", add_and_say_nothing)


def pins_outlive_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session goes on along another branch, and what was kept of the former stays kept."""
    monkeypatch.setattr(RadixRetention, "end_hint", lambda self, user: None)


def hints_reach_other_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's name alone says whose pages a hint is about."""
    session_user = users.session_user

    def of_any_tenant(session_id: str, cache_salt: str | None) -> UserId:
        return session_user(session_id, None)

    for module in (users, retention):
        monkeypatch.setattr(module, "session_user", of_any_tenant)


def keeps_count_for_no_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keep is entered in no budget."""
    monkeypatch.setattr(KeepBudget, "add", lambda self, keep: [])


def pins_of_pages_outlive_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins are made, and none is given up for them."""
    monkeypatch.setattr(HostPins, "_choose_victims", lambda self, num_bytes, tenant: [])


def pins_of_pages_outlive_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins that have run out are held on."""
    monkeypatch.setattr(HostPins, "expire", lambda self, now_s: None)


def pins_are_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tenants have one budget, and release each other's pins."""
    monkeypatch.setattr(hints, "tenant_of", lambda cache_salt: TenantId(0))


def released_pages_stay_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin ends, and its pages keep their reader."""
    monkeypatch.setattr(HostIndex, "unpin", lambda self, page_ids: None)


def kept_objects_outlive_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3 is not told that a session goes on, nor that others are kept in its place."""
    monkeypatch.setattr(HostRetention, "_end_object_hints", lambda self, user: None)


def objects_that_go_leave_their_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is evicted, and its hint stays on record."""
    monkeypatch.setattr(StoredObjects, "_end_hint", lambda self, name, found: None)


def early_loads_begin_where_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is to go on is loaded whoever waits for room."""
    num_early_pages = early_loads.num_early_pages
    monkeypatch.setattr(
        early_loads,
        "num_early_pages",
        lambda num_pages, spare: num_early_pages(num_pages, replace(spare, num_waiting=0)),
    )


def early_loads_count_when_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded for a session counts as cached before its bytes are there."""
    take_loads = CopyDrafter._take_loads

    def take(self: CopyDrafter, lane: Lane) -> list[Load]:
        loads = take_loads(self, lane)
        for load in loads:
            promotion = lane.promotions.of_load(load)
            if promotion is not None and promotion.returns is not None:
                lane.promotions.publish(promotion, 0.0)
        return loads

    monkeypatch.setattr(CopyDrafter, "_take_loads", take)


def prefetches_that_come_again_keep_their_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become of a prefetch counts for later ones of its name, too."""
    add = PrefetchStates.add

    def add_once(self: PrefetchStates, name: RequestId, progress: PrefetchProgress) -> None:
        if self.find(name) is None:
            add(self, name, progress)

    monkeypatch.setattr(PrefetchStates, "add", add_once)


CASES = [
    Case(mutant=prefetches_that_come_again_keep_their_state, workload=PINNING),
    Case(mutant=early_loads_begin_where_requests_wait, workload=RESUMING),
    Case(mutant=early_loads_count_when_they_are_sent, workload=RESUMING),
    Case(mutant=kept_objects_outlive_their_budget, workload=replace(STORING, seed=11)),
    Case(mutant=objects_that_go_leave_their_hints, workload=STORING),
    Case(mutant=pins_of_pages_outlive_their_budget, workload=replace(PINNING, seed=236)),
    Case(mutant=pins_of_pages_outlive_their_time, workload=PINNING),
    Case(mutant=pins_are_anybodys, workload=PINNING),
    Case(mutant=released_pages_stay_pinned, workload=PINNING),
    Case(mutant=pins_outlive_their_budget, workload=BUSY),
    Case(mutant=pins_outlive_the_next_request, workload=ROOMY),
    Case(mutant=hints_reach_other_tenants, workload=BUSY),
    Case(mutant=keeps_count_for_no_tenant, workload=BUSY),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
