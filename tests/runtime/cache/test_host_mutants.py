"""Tests of the tests: a core with a rule broken must fail the state machines."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, LeaseId, PageKey
from raydix.runtime.cache.host_holds import Quarantine
from raydix.runtime.cache.host_index import HostIndex, PageState
from raydix.runtime.cache.host_lookups import HostLookups
from raydix.runtime.cache.host_memory import HostMemoryCore
from raydix.runtime.cache.host_writes import HostWrites
from raydix.runtime.cache.storage_orders import StorageOrders
from raydix.runtime.messages.host import CopiesDrained
from tests.runtime.cache.test_host_index import IndexMachine
from tests.runtime.cache.test_host_machine import HostWorld

Patch = Callable[[pytest.MonkeyPatch], None]


def no_quarantine(patch: pytest.MonkeyPatch) -> None:
    def hold(self: Quarantine, pid: int | None, filling: Sequence[HostPageId], pinned: Sequence[HostPageId]) -> None:
        for page_id in filling:
            self._index.free(page_id)
        self._index.unpin(pinned)

    patch.setattr(Quarantine, "hold", hold)


def early_end_of_quarantine(patch: pytest.MonkeyPatch) -> None:
    attach = HostMemoryCore._attach_scheduler

    def attach_and_let_go(self: HostMemoryCore, epoch: int) -> None:
        attach(self, epoch)
        self._drain(CopiesDrained(host_incarnation=3))

    patch.setattr(HostMemoryCore, "_attach_scheduler", attach_and_let_go)


def no_generation_check(patch: pytest.MonkeyPatch) -> None:
    def is_filling(self: HostIndex, page_id: int, generation: int) -> bool:
        return self._pages[page_id].state is PageState.FILLING

    patch.setattr(HostIndex, "is_filling", is_filling)


def early_lease_end(patch: pytest.MonkeyPatch) -> None:
    def lease(self: HostIndex, lease_id: LeaseId, group: int, keys: Sequence[PageKey]) -> list[HostPageId]:
        found = [page_id for key in keys if (page_id := self.find(group, key)) is not None]
        self._leases[lease_id] = []
        return found

    patch.setattr(HostIndex, "lease", lease)


def head_first_touch(patch: pytest.MonkeyPatch) -> None:
    touch = HostIndex.touch_chain
    patch.setattr(HostIndex, "touch_chain", lambda self, group, keys: touch(self, group, keys[::-1]))


def overdue_pages_used_again(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: HostLookups, batch_id: BatchId) -> None:
        self._finds.pop(batch_id, None)
        batch = self._batches.pop(batch_id, None)
        if batch is not None:
            self._end_reads(batch_id, batch)
            self._num_filling[batch.group] -= len(batch.page_ids)
            for page_id in batch.page_ids:
                self._index.free(page_id)

    patch.setattr(HostLookups, "give_up", give_up)


def unpinned_writes(patch: pytest.MonkeyPatch) -> None:
    take = HostWrites._take_batch

    def take_unpinned(self: HostWrites) -> list[object]:
        batch = take(self)
        self._index.unpin(page_id for _, page_id in batch)
        return list(batch)

    patch.setattr(HostWrites, "_take_batch", take_unpinned)
    patch.setattr(HostWrites, "num_pinned", 0)


def retired_storage_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StorageOrders, "is_in_use", property(lambda self: True, lambda self, value: None), raising=False)


MUTANTS: list[tuple[Patch, type[RuleBasedStateMachine]]] = [
    (no_quarantine, HostWorld),
    (early_end_of_quarantine, HostWorld),
    (no_generation_check, HostWorld),
    (early_lease_end, HostWorld),
    (overdue_pages_used_again, HostWorld),
    (unpinned_writes, HostWorld),
    (retired_storage_used, HostWorld),
    (head_first_touch, IndexMachine),
]


@pytest.mark.parametrize(("mutant", "machine"), MUTANTS, ids=lambda value: value.__name__)
def test_broken_rule_is_found(
    mutant: Patch, machine: type[RuleBasedStateMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    search = settings(
        max_examples=1000,
        stateful_step_count=80,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, AccountingError, KeyError)):
        run_state_machine_as_test(machine, settings=search)
