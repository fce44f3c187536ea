"""The HostMemory core and other nodes: it pulls from some, and sends pages to others."""

from collections.abc import Callable
from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId, LookupId, SchedulerName, SourceId
from raydix.runtime.cache.host.events import (
    AskForKeys,
    FromPeer,
    FromReader,
    FromScheduler,
    HostEvent,
    PagesSent,
    PeerAttached,
    PeerLost,
    ReaderAttached,
    ReaderLost,
    SchedulerAttached,
    SchedulerEnded,
    SendPages,
    Tick,
    ToReader,
    ToScheduler,
    ToStorage,
)
from raydix.runtime.cache.host.fetching import Fetching
from raydix.runtime.cache.host.lookups import HostLookups
from raydix.runtime.cache.host.mirror import HostMirror
from raydix.runtime.cache.host.schedulers import FormerArena
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AskExists,
    CancelLookup,
    CopiesDrained,
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    ReadObjects,
)
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.messages.pulls import PullPages, TellKeys
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import PAGE_SIZE, STORAGE, make_keys
from tests.runtime.cache.host.scheduler_end import FIRST

OTHER = ConnectionId(900)
LATE = ConnectionId(901)
LATE_NAME = SchedulerName("late")
FOUND = SourceId(2)
OK, MISSING = bytes([ObjectStatus.OK]), bytes([ObjectStatus.MISSING])


def attached() -> HostScript:
    host = HostScript(16)
    host.attach_scheduler()
    return host


def handle(host: HostScript, event: HostEvent) -> list[object]:
    return list(host.core.handle(event, host.now_s))


def told(effects: list[object]) -> list[object]:
    return [each.message for each in effects if isinstance(each, ToScheduler)]


def orders(effects: list[object]) -> list[object]:
    return [each.message for each in effects if isinstance(each, ToStorage)]


def look_up(host: HostScript, names: list[str], number: int = 1) -> list[object]:
    assert host.scheduler is not None
    message = Lookup(
        lookup_id=LookupId(number), keys=make_keys(names), num_l1_pages=(0,), source=FOUND
    )
    return handle(host, FromScheduler(host.scheduler, message))


def test_pages_stay_while_they_are_sent_even_to_a_reader_that_has_gone() -> None:
    host = attached()
    host.commit(["a", "b"])
    handle(host, ReaderAttached(OTHER))
    pull = PullPages(batch_id=BatchId(7), keys=make_keys(["a", "x", "b"]))

    [send] = [each for each in handle(host, FromReader(OTHER, pull)) if isinstance(each, SendPages)]

    first, lacking, last = send.page_ids
    assert lacking is None
    assert first is not None
    assert last is not None
    handle(host, ReaderLost(OTHER))
    assert host.core._index.num_readers_of(first) == host.core._index.num_readers_of(last) == 1
    handle(host, PagesSent(OTHER, BatchId(7)))
    assert host.core._index.num_readers == 0
    host.core.check()


def test_readers_are_told_which_pages_there_are_first_all_and_then_what_changes() -> None:
    host = attached()
    host.commit(["a"])
    handle(host, ReaderAttached(OTHER))
    question = AskExists(batch_id=BatchId(3), keys=make_keys(["a", "x"]))

    effects = handle(host, FromReader(OTHER, question))

    said = [each.message for each in effects if isinstance(each, ToReader)]
    assert said == [ObjectsDone(batch_id=BatchId(3), statuses=OK + MISSING)]
    known = ToReader(OTHER, MirrorUpdate(ready=make_keys(["a"])[:MIRROR_KEY_BYTES]))
    assert known in handle(host, Tick())
    assert known not in handle(host, Tick())
    handle(host, FromReader(OTHER, TellKeys()))
    assert known in handle(host, Tick())


def test_what_a_peer_sends_is_ready_and_counts_as_its_own_tier() -> None:
    host = attached()
    assert PeerFound(source=FOUND, name="n") in told(handle(host, PeerAttached(OTHER, "n")))
    [question] = orders(look_up(host, ["a", "b"]))
    assert isinstance(question, AskExists)
    exists = ObjectsDone(batch_id=question.batch_id, statuses=OK * 2)

    [read] = orders(handle(host, FromPeer(OTHER, exists)))
    assert isinstance(read, ReadObjects)
    done = ObjectsDone(batch_id=read.batch_id, statuses=OK * 2)
    host.now_s += 0.5
    reports = told(handle(host, FromPeer(OTHER, done)))

    report = next(each for each in reports if isinstance(each, LookupProgress) and each.is_final)
    assert report.sources == (bytes([PageSource.PEER] * 2),)
    assert (report.source, report.seconds) == (FOUND, 0.5)
    host.core.check()


def test_what_a_peer_lacks_is_noted_for_a_moment_and_no_longer() -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    [fetching] = host.core._peers.fetchings
    for number in range(1, 4):
        [question] = orders(look_up(host, [f"{number}"], number))
        assert isinstance(question, AskExists)
        lacks = ObjectsDone(batch_id=question.batch_id, statuses=MISSING)
        handle(host, FromPeer(OTHER, lacks))
        host.now_s += STORAGE.missing_ttl_s

    assert len(fetching.orders.missing) == 1
    assert fetching.orders.missing.take_news() == []


def test_a_peer_that_is_lost_ends_its_lookups_and_gives_its_pages_back() -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    [question] = orders(look_up(host, ["a", "b"]))
    assert isinstance(question, AskExists)
    exists = ObjectsDone(batch_id=question.batch_id, statuses=OK * 2)
    handle(host, FromPeer(OTHER, exists))
    assert host.stat("pages_reading") == 2

    said = told(handle(host, PeerLost(OTHER)))

    assert PeerGone(source=FOUND) in said
    report = next(each for each in said if isinstance(each, LookupProgress))
    assert report.sources == (bytes([PageSource.IO_ERROR] * 2),)
    assert host.stat("pages_reading") == host.stat("pages_quarantined") == host.stat("peers") == 0
    host.core.check()


def test_a_scheduler_that_comes_late_is_told_of_peers_whose_keys_come_once_more() -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))

    effects = handle(host, SchedulerAttached(LATE, LATE_NAME))

    assert ToScheduler(LATE, PeerFound(source=FOUND, name="n")) in effects
    assert AskForKeys(OTHER) in effects
    update = MirrorUpdate(ready=bytes(16))
    told_now = handle(host, FromPeer(OTHER, update))
    keys = MirrorUpdate(source=FOUND, ready=bytes(16))
    assert ToScheduler(LATE, keys) in told_now


class Touched:
    """Notes which fetchings, and lookups of these, an event goes over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fetchings: set[object] = set()
        self._lookups: set[object] = set()
        for name in ("give_up_some", "dispatch"):
            noting = _noting(self._fetchings, getattr(Fetching, name))
            monkeypatch.setattr(Fetching, name, noting)
        for name in ("has_work", "next_deadline_s"):
            noting = _noting(self._fetchings, getattr(Fetching, name).fget)
            monkeypatch.setattr(Fetching, name, property(noting))
        for name in ("take_reports", "cancel"):
            noting = _noting(self._lookups, getattr(HostLookups, name))
            monkeypatch.setattr(HostLookups, name, noting)

    def by(self, host: HostScript, event: HostEvent) -> int:
        """The number of peers that an event goes over, and the question of what is due next."""
        self._fetchings.clear()
        self._lookups.clear()
        handle(host, event)
        host.core.next_deadline_s()
        storage = host.core._storage.fetching
        return max(len(self._fetchings - {storage}), len(self._lookups - {storage.lookups}))


def _noting(seen: set[object], function: Callable[..., Any]) -> Callable[..., Any]:
    def note_and_call(owner: object, *arguments: Any) -> Any:
        seen.add(owner)
        return function(owner, *arguments)

    return note_and_call


def test_an_event_goes_over_those_peers_alone_with_which_something_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    for number in range(20):
        handle(host, PeerAttached(ConnectionId(1000 + number), f"node {number}"))
    touched = Touched(monkeypatch)
    assert touched.by(host, Tick()) == 0

    [question] = orders(look_up(host, ["a"]))
    assert touched.by(host, Tick()) == 1
    assert host.scheduler is not None
    cancel = FromScheduler(host.scheduler, CancelLookup(lookup_id=LookupId(9)))
    assert touched.by(host, cancel) == 1

    assert isinstance(question, AskExists)
    handle(host, FromPeer(OTHER, ObjectsDone(batch_id=question.batch_id, statuses=MISSING)))
    assert touched.by(host, Tick()) == 0
    assert touched.by(host, FromPeer(OTHER, MirrorUpdate(ready=bytes(16)))) == 0
    host.core.check()


def test_a_peer_that_was_too_late_is_probed_though_nobody_looks_anything_up() -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    look_up(host, ["a"])
    overdue_s = host.core.next_deadline_s()
    assert overdue_s is not None
    host.now_s = overdue_s
    [report] = [each for each in told(handle(host, Tick())) if isinstance(each, LookupProgress)]
    assert report.is_final

    retry_s = host.core.next_deadline_s()

    assert retry_s is not None
    assert retry_s > overdue_s
    host.now_s = retry_s
    assert any(isinstance(each, AskExists) for each in orders(handle(host, Tick())))
    host.core.check()


def test_a_peer_is_not_left_alone_before_all_is_done() -> None:
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    look_up(host, ["a"])
    host.core.check()

    host.core._peers._busy.clear()

    with pytest.raises(AccountingError, match="under way"):
        host.core.check()


def test_a_lookup_at_a_peer_that_has_gone_is_one_of_l3() -> None:
    host = attached()

    reports = told(look_up(host, ["a"]))

    [report] = [each for each in reports if isinstance(each, LookupProgress)]
    assert report.sources == (bytes([PageSource.NOT_FOUND]),)


def test_a_run_that_l3_would_be_too_short_for_is_pulled() -> None:
    assert STORAGE.min_tokens > PAGE_SIZE
    host = attached()
    handle(host, PeerAttached(OTHER, "n"))
    [question] = orders(look_up(host, ["a"]))
    assert isinstance(question, AskExists)

    [read] = orders(
        handle(host, FromPeer(OTHER, ObjectsDone(batch_id=question.batch_id, statuses=OK)))
    )

    assert isinstance(read, ReadObjects)


def test_a_new_peer_gets_no_page_while_an_earlier_user_may_copy_into_the_arena() -> None:
    host = HostScript(16, former=FormerArena(int32_array(range(16)), (FIRST, LATE_NAME)))
    host.attach_scheduler()
    assert host.scheduler is not None
    handle(host, PeerAttached(OTHER, "n"))
    [question] = orders(look_up(host, ["a", "b"]))
    assert isinstance(question, AskExists)
    exists = ObjectsDone(batch_id=question.batch_id, statuses=OK * 2)
    assert orders(handle(host, FromPeer(OTHER, exists))) == []
    assert host.stat("pages_reading") == 0

    handle(host, FromScheduler(host.scheduler, CopiesDrained()))
    handle(host, SchedulerEnded(LATE_NAME))
    [question] = orders(look_up(host, ["c"], number=2))
    assert isinstance(question, AskExists)
    exists = ObjectsDone(batch_id=question.batch_id, statuses=OK)
    [read] = orders(handle(host, FromPeer(OTHER, exists)))
    assert isinstance(read, ReadObjects)
    host.core.check()


def test_a_reader_that_is_lost_is_told_nothing_more() -> None:
    host = attached()
    handle(host, ReaderAttached(OTHER))
    handle(host, ReaderAttached(ConnectionId(902)))
    handle(host, ReaderLost(OTHER))
    host.commit(["a"])

    effects = handle(host, Tick())

    assert {each.connection for each in effects if isinstance(each, ToReader)} <= {902}
    assert host.stat("peer_readers") == 1


def test_readers_that_know_all_keys_are_gone_over_only_when_some_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = attached()
    host.commit(["a"])
    for number in range(20):
        handle(host, ReaderAttached(ConnectionId(1000 + number)))
    handle(host, Tick())
    walks: set[object] = set()
    monkeypatch.setattr(HostMirror, "take_piece", _noting(walks, HostMirror.take_piece))

    handle(host, ReaderAttached(OTHER))
    effects = handle(host, Tick())

    # Of the reader that is new, and of the Scheduler.
    assert len(walks) == 2
    assert [each.connection for each in effects if isinstance(each, ToReader)] == [OTHER]
    assert handle(host, Tick()) == []
    assert len(walks) == 2


def test_l3_is_asked_about_what_was_pulled_as_it_may_lack_that() -> None:
    host = HostScript(16, STORAGE)
    host.attach_storage(50)
    host.attach_scheduler()
    handle(host, PeerAttached(OTHER, "n"))
    [question] = orders(look_up(host, ["a", "b"]))
    assert isinstance(question, AskExists)
    exists = ObjectsDone(batch_id=question.batch_id, statuses=OK * 2)
    [read] = orders(handle(host, FromPeer(OTHER, exists)))
    assert isinstance(read, ReadObjects)

    done = ObjectsDone(batch_id=read.batch_id, statuses=OK * 2)
    effects = [*handle(host, FromPeer(OTHER, done)), *handle(host, Tick())]

    asked = [each for each in effects if isinstance(each, ToStorage)]
    assert [each.connection for each in asked] == [host.storage]
    assert isinstance(asked[0].message, AskExists)
    assert asked[0].message.keys == make_keys(["a", "b"])
