"""Broken rules about hints, each found by random workloads as in `test_mutants`."""

from dataclasses import replace

import pytest

from raydix.ids import TenantId, UserId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.retention import HostRetention
from raydix.runtime.cache.keep_budget import Keep, KeepBudget
from raydix.runtime.cache.radix_retention import RadixRetention
from raydix.runtime.scheduler.life import hints, retention
from raydix.runtime.scheduler.request import users
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


CASES = [
    Case(mutant=kept_objects_outlive_their_budget, workload=STORING),
    Case(mutant=objects_that_go_leave_their_hints, workload=STORING),
    Case(mutant=pins_of_pages_outlive_their_budget, workload=PINNING),
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
