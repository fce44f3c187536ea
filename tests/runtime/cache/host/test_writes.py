"""The HostMemory core with L3: writes, and removing all objects."""

from dataclasses import replace

import pytest

from raydix.runtime.cache.host.events import (
    FlushHost,
    FlushStorage,
    ProcessExited,
    Tick,
)
from raydix.runtime.messages.host import ObjectStatus, PageSource, WriteObjects
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import STORAGE, HostScript, make_key

L3 = PageSource.L3


def test_commits_are_written_to_l3_and_fetched_pages_are_not() -> None:
    host = with_storage()
    host.store([8, 9])
    host.commit(range(6))
    assert not host.core.is_drained
    host.answer_all()
    assert set(host.objects) == {make_key(name) for name in (*range(6), 8, 9)}
    assert host.stat("l3_pages_written") == 6
    host.lookup("r", [8, 9])
    host.answer_all()
    assert host.sources("r") == [L3, L3]
    assert host.stat("l3_pages_written") == 6
    assert host.core.is_drained


def test_page_being_written_is_not_evicted() -> None:
    host = with_storage(16)
    host.commit(["a"])
    [write] = host.orders
    assert isinstance(write, WriteObjects)
    host.orders.clear()
    [page] = write.host_page_ids.tolist()
    for name in range(40):
        host.commit([name])
        assert page not in [granted for granted, _ in host.granted]
    assert make_key("a")[:16] in host.mirror


def test_page_that_l2_drops_before_its_turn_is_not_written() -> None:
    host = with_storage(16, replace(STORAGE, max_write_batches=1))
    host.commit(["first"])
    host.commit(range(30))
    host.answer_all()
    dropped = host.stat("l3_writes_dropped_evicted")
    written = host.stat("l3_pages_written")
    assert isinstance(dropped, int)
    assert isinstance(written, int)
    assert dropped > 0
    assert dropped + written == 31
    assert host.core.is_drained


def test_full_queue_drops_and_counts() -> None:
    host = with_storage(settings=replace(STORAGE, max_queued_writes=3, max_write_batches=1))
    host.commit(range(8))
    assert host.stat("l3_writes_pending") == 4
    assert host.stat("l3_writes_dropped_queue_full") == 4
    host.answer_all()
    assert host.stat("l3_pages_written") == 4


def test_failed_write_is_retried_then_dropped_and_counted() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=100))
    host.store(["bad"], ObjectStatus.IO_ERROR)
    host.commit(["bad"])
    host.answer_all()
    assert host.stat("l3_writes_retried") == STORAGE.max_write_attempts - 1
    assert host.stat("l3_writes_dropped_failed") == 1
    assert host.core.is_drained


def test_full_storage_drops_writes_without_tripping_the_breaker() -> None:
    host = with_storage()
    host.store(range(8), ObjectStatus.FULL)
    host.commit(range(8))
    host.answer_all()
    assert host.stat("l3_writes_dropped_full") == 8
    assert host.stat("l3_breaker") == "closed"


def test_writes_wait_while_the_breaker_is_open_and_probe_by_themselves() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_attempts=10))
    host.store(["bad"], ObjectStatus.IO_ERROR)
    host.commit(["bad"])
    host.answer()
    host.answer()
    assert host.stat("l3_breaker") == "open"
    host.commit(["good"])
    assert not host.orders
    due_s = host.core.next_deadline_s()
    assert due_s == host.now_s + STORAGE.breaker_backoff_s
    host.now_s = due_s
    host.objects.clear()
    host.tell(Tick())
    host.answer_all()
    assert host.stat("l3_breaker") == "closed"
    assert host.stat("l3_pages_written") == 2
    assert host.core.next_deadline_s() is None


def test_lost_storage_has_its_writes_queued_again_and_keeps_its_pins() -> None:
    host = with_storage(16)
    host.commit(["a", "b"])
    host.orders.clear()
    host.lose_storage()
    assert not host.core.is_drained
    host.attach_storage(51)
    host.answer_all()
    assert set(host.objects) == {make_key("a"), make_key("b")}
    for name in range(40):
        host.commit([name])
        host.answer_all()
    assert {make_key("a")[:16], make_key("b")[:16]} <= host.mirror
    host.tell(ProcessExited(50))
    for name in range(40, 80):
        host.commit([name])
        host.answer_all()
    assert make_key("a")[:16] not in host.mirror


def test_commits_before_storage_attaches_are_written_afterwards() -> None:
    host = HostScript(64, STORAGE)
    host.attach_scheduler()
    host.commit(["a"])
    assert not host.orders
    host.attach_storage(50)
    host.answer_all()
    assert set(host.objects) == {make_key("a")}


def test_flush_of_l3_waits_for_writes_and_is_answered_once() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_batches=1))
    host.commit(range(6))
    host.tell(FlushStorage())
    host.commit(["later"])
    assert len(host.orders) == 1
    host.answer()
    assert host.flushed == []
    host.answer()
    assert host.flushed == [ObjectStatus.OK]
    host.answer_all()
    assert set(host.objects) == {make_key("later")}
    assert host.core.is_drained


@pytest.mark.parametrize("trouble", ["lost", "silent", "absent"])
def test_flush_of_l3_is_answered_in_trouble_too(trouble: str) -> None:
    host = with_storage()
    if trouble == "absent":
        host.lose_storage()
    host.tell(FlushStorage())
    if trouble == "lost":
        host.lose_storage()
    if trouble == "silent":
        host.now_s += STORAGE.clear_patience_s
        host.tell(Tick())
        host.answer_all()
    assert host.flushed == [
        ObjectStatus.TIMED_OUT if trouble == "silent" else ObjectStatus.IO_ERROR
    ]


def test_flush_of_l3_may_take_minutes() -> None:
    host = with_storage()
    host.tell(FlushStorage())
    host.now_s += 120.0
    host.tell(Tick())
    host.answer()
    assert host.flushed == [ObjectStatus.OK], "a million objects take their time"
    assert host.stat("l3_breaker_trips") == 0


def test_flush_then_lookup_comes_from_storage() -> None:
    host = with_storage()
    host.commit(range(8))
    host.answer_all()
    host.tell(FlushHost())
    assert host.mirror == set()
    host.lookup("r", range(8))
    host.answer_all()
    assert host.sources("r") == [L3] * 8
