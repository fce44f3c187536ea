"""Tests of the tests: a core with a rule broken must fail the state machines."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId, HostPageId, LeaseId, PageKey, SchedulerName
from raydix.runtime.cache.host import open_lookup
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import FromScheduler, FromStorage, HostEvent
from raydix.runtime.cache.host.flush import HostFlush
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.host.lookups import HostLookups
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.pages import HostPages, HostPageState
from raydix.runtime.cache.host.quarantine import Holder, Quarantine
from raydix.runtime.cache.host.reads import HostReads, Waiter
from raydix.runtime.cache.host.scheduler_side import SchedulerSide
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.window_ends import FetchPlan, PrefixRule, plan_fetch
from raydix.runtime.cache.host.writes import HostWrites
from raydix.runtime.messages.host import (
    CommitPages,
    CopiesDrained,
    Lookup,
    LookupProgress,
    PageSource,
)
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.test_index_machine import IndexMachine
from tests.runtime.cache.host.test_machine import HostWorld

Patch = Callable[[pytest.MonkeyPatch], None]


def no_quarantine(patch: pytest.MonkeyPatch) -> None:
    def hold(
        self: Quarantine,
        holders: Collection[Holder],
        filling: Sequence[HostPageId],
        pinned: Sequence[HostPageId],
    ) -> None:
        for page_id in filling:
            self._index.free(page_id)
        self._index.unpin(pinned)

    patch.setattr(Quarantine, "hold", hold)


def end_of_quarantine_with_the_first_process(patch: pytest.MonkeyPatch) -> None:
    def let_go(self: Quarantine, holder: Holder) -> None:
        for held in self._held.get(holder, ()):
            for other in held.holders - {holder}:
                self._held[other].remove(held)
            held.holders &= {holder}
        let_go_of_all(self, holder)

    let_go_of_all = Quarantine.let_go
    patch.setattr(Quarantine, "let_go", let_go)


def early_end_of_quarantine(patch: pytest.MonkeyPatch) -> None:
    attach = HostMemoryCore._attach_scheduler

    def attach_and_let_go(
        self: HostMemoryCore, connection: ConnectionId, name: SchedulerName
    ) -> None:
        attach(self, connection, name)
        self._take_message(self._schedulers.of(connection), CopiesDrained())

    patch.setattr(HostMemoryCore, "_attach_scheduler", attach_and_let_go)


def end_of_quarantine_with_any_scheduler(patch: pytest.MonkeyPatch) -> None:
    def let_go(self: Quarantine, holder: Holder) -> None:
        names = [other for other in self._held if isinstance(other, str)]
        for other in names if isinstance(holder, str) else [holder]:
            let_go_of_one(self, other)

    let_go_of_one = Quarantine.let_go
    patch.setattr(Quarantine, "let_go", let_go)


def lost_scheduler_ends_leases_of_another(patch: pytest.MonkeyPatch) -> None:
    def lose(self: HostMemoryCore, side: SchedulerSide) -> None:
        for other in self._schedulers.attached:
            if other is not side:
                self._index.unpin(other.leases.detach_all())
        lose_one(self, side)

    lose_one = HostMemoryCore._lose_scheduler
    patch.setattr(HostMemoryCore, "_lose_scheduler", lose)


def report_to_who_asked_last(patch: pytest.MonkeyPatch) -> None:
    last: list[ConnectionId] = []

    def start(self: HostLookups, connection: ConnectionId, message: Lookup, now_s: float) -> None:
        last[:] = [connection]
        start_rightly(self, connection, message, now_s)

    def take_reports(self: HostLookups, now_s: float) -> list[tuple[ConnectionId, LookupProgress]]:
        return [(last[0], report) for _, report in take_rightly(self, now_s)]

    start_rightly, take_rightly = HostLookups.start, HostLookups.take_reports
    patch.setattr(HostLookups, "start", start)
    patch.setattr(HostLookups, "take_reports", take_reports)


def no_generation_check(patch: pytest.MonkeyPatch) -> None:
    def is_filling(self: HostIndex, page_id: int, generation: int) -> bool:
        return self.state(HostPageId(page_id)) is HostPageState.FILLING

    patch.setattr(HostIndex, "is_filling", is_filling)


def early_lease_end(patch: pytest.MonkeyPatch) -> None:
    def lease_unpinned(
        self: HostLeases, lease_id: LeaseId, keys: Sequence[PageKey], starts: Sequence[int]
    ) -> list[list[HostPageId]]:
        runs = lease(self, lease_id, keys, starts)
        self.end(lease_id)
        self._held[lease_id] = []
        return runs

    lease = HostLeases.lease
    patch.setattr(HostLeases, "lease", lease_unpinned)


def head_first_touch(patch: pytest.MonkeyPatch) -> None:
    touch = HostIndex.touch_chain
    patch.setattr(
        HostIndex,
        "touch_chain",
        lambda self, group, keys, *user: touch(self, group, keys[::-1], *user),
    )


def newer_slab_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostPages, "is_slab_older", lambda self, slab, page_id: True)


def overdue_pages_used_again(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: HostReads, batch_id: BatchId) -> list[Waiter]:
        batch = self._batches.pop(batch_id, None)
        if batch is not None:
            self._end_reads(batch_id, batch)
            self._count_filling(batch.group, -len(batch.page_ids))
            for page_id in batch.page_ids:
                self._index.free(page_id)
        return []

    patch.setattr(HostReads, "give_up", give_up)


def answers_to_whatever_link_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostScript, "end_of", lambda self, connection: self.end)


def _accept_stale(patch: pytest.MonkeyPatch, accepts: Callable[[HostEvent], bool]) -> None:
    is_stale = HostMemoryCore._is_stale
    patch.setattr(
        HostMemoryCore,
        "_is_stale",
        lambda self, event: is_stale(self, event) and not accepts(event),
    )


def drained_accepted_from_an_earlier_connection(patch: pytest.MonkeyPatch) -> None:
    _accept_stale(
        patch,
        lambda event: isinstance(event, FromScheduler) and isinstance(event.message, CopiesDrained),
    )


def commit_accepted_from_an_earlier_connection(patch: pytest.MonkeyPatch) -> None:
    _accept_stale(
        patch,
        lambda event: isinstance(event, FromScheduler) and isinstance(event.message, CommitPages),
    )


def storage_heard_over_an_earlier_connection(patch: pytest.MonkeyPatch) -> None:
    _accept_stale(patch, lambda event: isinstance(event, FromStorage))


def flush_that_skips_pages(patch: pytest.MonkeyPatch) -> None:
    def advance(self: HostFlush) -> int | None:
        if self._walked_to is not None:
            self._walked_to += 1
        return flush_advance(self)

    flush_advance = HostFlush.advance
    patch.setattr(HostFlush, "advance", advance)


def unpinned_writes(patch: pytest.MonkeyPatch) -> None:
    take = HostWrites._take_batch

    def take_unpinned(self: HostWrites) -> tuple[int, bytes, list[HostPageId]]:
        group, keys, pages = take(self)
        self._index.unpin(pages)
        return group, keys, pages

    patch.setattr(HostWrites, "_take_batch", take_unpinned)
    patch.setattr(HostWrites, "num_pinned", 0)


def retired_storage_used(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        StorageOrders,
        "is_in_use",
        property(lambda self: True, lambda self, value: None),
        raising=False,
    )


def failed_window_page_reported(patch: pytest.MonkeyPatch) -> None:
    def fail(self: OpenLookup, group: int, failures: Iterable[tuple[int, PageSource]]) -> bool:
        if self._rule.reaches[group] is None:
            return fail_rightly(self, group, failures)
        arrived = [self.arrive(group, index) for index, _ in failures]
        return any(arrived)

    fail_rightly = OpenLookup.fail
    patch.setattr(OpenLookup, "fail", fail)


def checkpoint_chosen_though_a_page_is_missing(patch: pytest.MonkeyPatch) -> None:
    def plan(rule: PrefixRule, pages: Sequence[bytes]) -> FetchPlan:
        shorter = [reach - 1 if reach else reach for reach in rule.reaches]
        return plan_fetch(replace(rule, reaches=tuple(shorter)), pages)

    patch.setattr(open_lookup, "plan_fetch", plan)


MUTANTS: list[tuple[Patch, type[RuleBasedStateMachine]]] = [
    (no_quarantine, HostWorld),
    (end_of_quarantine_with_the_first_process, HostWorld),
    (early_end_of_quarantine, HostWorld),
    (end_of_quarantine_with_any_scheduler, HostWorld),
    (lost_scheduler_ends_leases_of_another, HostWorld),
    (report_to_who_asked_last, HostWorld),
    (no_generation_check, HostWorld),
    (early_lease_end, HostWorld),
    (overdue_pages_used_again, HostWorld),
    (unpinned_writes, HostWorld),
    (retired_storage_used, HostWorld),
    (answers_to_whatever_link_is_there, HostWorld),
    (drained_accepted_from_an_earlier_connection, HostWorld),
    (commit_accepted_from_an_earlier_connection, HostWorld),
    (storage_heard_over_an_earlier_connection, HostWorld),
    (flush_that_skips_pages, HostWorld),
    (failed_window_page_reported, HostWorld),
    (checkpoint_chosen_though_a_page_is_missing, HostWorld),
    (head_first_touch, IndexMachine),
    (newer_slab_taken, IndexMachine),
]


@pytest.mark.part
@pytest.mark.parametrize(("mutant", "machine"), MUTANTS, ids=lambda value: value.__name__)
def test_broken_rule_is_found(
    mutant: Patch, machine: type[RuleBasedStateMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    search = settings(
        max_examples=4000,
        stateful_step_count=80,
        database=None,
        phases=[Phase.generate],
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, AccountingError, KeyError)):
        run_state_machine_as_test(machine, settings=search)
