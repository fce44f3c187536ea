"""Broken rules about what followers are told, each found as in `test_mutants`."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from raydix.runtime.cache.host.stored_objects import StoredObjects
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, short_keys, split_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.messages.kv_events import KvEvent, PagesRemoved, Tier
from raydix.runtime.scheduler import key_news, page_news
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.host_messages import HostMessages
from raydix.runtime.scheduler.key_news import KeyNews
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.pages.l1_news import L1News
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload

BUSY = Workload(seed=0, settings=replace(BASE_SETTINGS, num_pages=(30,)), num_requests=40)


def pages_are_told_with_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of L2 is told of once the Scheduler has sent its commit."""
    init = SchedulerCore.__init__

    def init_and_tell_early(core: SchedulerCore, settings: SchedulerSettings, phase: Phase) -> None:
        init(core, settings, phase)
        mirror = core._source.view.keys
        add = mirror.add

        def add_and_tell(group: int, keys: bytes) -> None:
            shorts = split_keys(short_keys(keys), MIRROR_KEY_BYTES)
            came = [key for key in shorts if key not in mirror._groups[group]]
            add(group, keys)
            mirror._expected[group].clear()
            core._page_news.note_shared(Tier.L2, group, b"".join(came), b"")

        monkeypatch.setattr(mirror, "add", add_and_tell)

    monkeypatch.setattr(SchedulerCore, "__init__", init_and_tell_early)


def evictions_are_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told of pages that leave L1."""
    monkeypatch.setattr(L1News, "removed", lambda self, victims: None)


def deaths_of_ranks_are_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a lane has lost its L1 with its ranks."""
    monkeypatch.setattr(L1News, "cleared", lambda self: None)


def deaths_of_host_memory_are_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that L2 is gone."""
    monkeypatch.setattr(HostMessages, "_clear", lambda self, tier, mirror: None)


def deaths_of_storage_are_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """HostMemory forgets what L3 had, and tells nobody."""
    monkeypatch.setattr(StoredObjects, "forget_all", lambda self: self._known.clear())


def duplicates_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever computes what L1 has already tells of it once more."""
    inserted = L1News.inserted

    def tell_all(self: L1News, chain: Chain, start: int, own: PageIds, kept: PageIds) -> None:
        inserted(self, chain, start, kept, kept)

    monkeypatch.setattr(L1News, "inserted", tell_all)


def changes_overtake_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes late is told of changes at once, and of what there was when it gets to that."""
    monkeypatch.setattr(page_news, "_PIECE_BYTES", 1)

    def hand_on_first(self: PageNews) -> tuple[KvEvent, ...]:
        changes, self._changes = tuple(self._changes), []
        for connection in self._behind:
            self._left[connection].extendleft(reversed(changes))
        return changes

    monkeypatch.setattr(PageNews, "_hand_on_changes", hand_on_first)


def routers_are_told_of_nothing_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that route hear of pages that come, and not of those that leave."""
    note = KeyNews.note

    def note_what_comes(self: KeyNews, changes: Iterable[KvEvent]) -> None:
        note(self, [each for each in changes if not isinstance(each, PagesRemoved)])

    monkeypatch.setattr(KeyNews, "note", note_what_comes)


def routers_are_told_changes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes overtake what there was when a client that routes came."""

    def note_first(self: KeyNews, changes: Iterable[KvEvent]) -> None:
        told = list(key_news._keys_alone(changes, self._group))
        for client in self._clients.values():
            client.left.extendleft(reversed(told))

    monkeypatch.setattr(key_news, "_PIECE_BYTES", 1)
    monkeypatch.setattr(KeyNews, "note", note_first)


CASES = [
    Case(mutant=pages_are_told_with_their_commit, workload=BUSY),
    Case(mutant=evictions_are_kept_quiet, workload=BUSY),
    Case(mutant=deaths_of_ranks_are_kept_quiet, workload=replace(BUSY, num_rank_kills=2)),
    Case(mutant=deaths_of_host_memory_are_kept_quiet, workload=replace(BUSY, num_host_kills=2)),
    Case(mutant=deaths_of_storage_are_kept_quiet, workload=replace(BUSY, num_storage_kills=2)),
    Case(mutant=duplicates_are_told_again, workload=BUSY),
    Case(mutant=changes_overtake_what_there_is, workload=replace(BUSY, span_s=0.5)),
    Case(mutant=routers_are_told_of_nothing_that_goes, workload=BUSY),
    Case(mutant=routers_are_told_changes_first, workload=replace(BUSY, span_s=0.5)),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
