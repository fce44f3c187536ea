"""The HostMemory core with L3: writes, and removing all objects."""

import random
from dataclasses import replace

import pytest

from raydix.runtime.cache.host import writes as host_writes
from raydix.runtime.cache.host.events import (
    FlushHost,
    FlushStorage,
    ProcessExited,
    Tick,
)
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    CommitPages,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    WriteObjects,
)
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key, make_keys
from tests.runtime.cache.host.host_world import ready_keys

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


def written_names(host: HostScript) -> list[bytes]:
    """Answer every order; what was written, in order."""
    written: list[bytes] = []
    while host.orders:
        order = host.answer()
        if isinstance(order, WriteObjects):
            written += split_keys(order.keys)
    return written


def commit_all_that_is_granted(host: HostScript, first_name: int) -> int:
    """Commit all in one message: checks of thousands of pages take long. Returns their number."""
    pairs = list(host.granted)
    host.granted.clear()
    names = range(first_name, first_name + len(pairs))
    commit = CommitPages(
        keys=make_keys(names),
        host_page_ids=int32_array(page_id for page_id, _ in pairs),
        generations=int32_array(generation for _, generation in pairs),
    )
    host.say(commit)
    return len(pairs)


def test_page_that_l2_drops_before_its_turn_is_lost_and_counted() -> None:
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


def test_nothing_is_dropped_however_many_pages_wait() -> None:
    host = with_storage(8192, replace(STORAGE, max_write_batches=1, batch_pages=512))
    num_committed = 0
    while num_committed < 6000:
        num_committed += commit_all_that_is_granted(host, num_committed)
    assert host.stat("l3_writes_pending") == num_committed
    assert len(written_names(host)) == num_committed
    assert host.core.is_drained


def test_pages_are_written_in_the_order_of_their_commits() -> None:
    host = with_storage(64, replace(STORAGE, max_write_batches=1))
    host.commit(range(20))
    assert written_names(host) == [make_key(name) for name in range(20)]


def test_chain_that_a_request_uses_is_written_first_and_from_its_head_on() -> None:
    host = with_storage(64, replace(STORAGE, max_write_batches=1))
    host.commit(range(30))
    host.lookup("r", range(10, 20))
    written = written_names(host)[STORAGE.batch_pages - 3 :]
    assert written[:10] == [make_key(name) for name in range(10, 20)]
    assert len(written) == 29


def test_new_pages_are_written_before_those_that_l3_was_found_to_lack() -> None:
    host = HostScript(256)
    host.attach_scheduler()
    host.commit(range(100))
    host.attach_storage(50)
    while not any(isinstance(order, WriteObjects) for order in host.orders):
        host.answer()
    host.commit([f"new{name}" for name in range(8)])
    written = written_names(host)
    first = written.index(make_key("new0"))
    assert first <= STORAGE.max_write_batches * STORAGE.batch_pages
    assert written[first : first + 8] == [make_key(f"new{name}") for name in range(8)]
    assert len(host.objects) == 108


def test_failed_write_is_retried_before_the_rest_of_its_chain_and_then_put_off() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=100, max_write_batches=1))
    host.store(["bad"], ObjectStatus.IO_ERROR)
    host.commit(["bad", *range(8)])
    assert written_names(host)[:3] == [make_key("bad")] * 2 + [make_key(0)]
    assert host.stat("l3_writes_retried") == STORAGE.max_write_attempts - 1
    assert host.stat("l3_writes_dropped_failed") == host.stat("l3_writes_put_off") == 1
    assert host.stat("l3_pages_written") == 8
    assert host.core.is_drained


def test_page_that_was_put_off_is_written_when_its_time_has_come() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=100))
    host.store(["bad"], ObjectStatus.IO_ERROR)
    host.commit(["bad"])
    host.answer_all()
    assert host.core.next_deadline_s() == host.now_s + STORAGE.put_off_s
    host.now_s += STORAGE.put_off_s
    host.tell(Tick())
    assert len(written_names(host)) == 1, "it fails once more, and is not hammered"
    host.objects.clear()
    host.now_s += STORAGE.put_off_s
    host.tell(Tick())
    host.answer_all()
    assert set(host.objects) == {make_key("bad")}
    assert host.core.next_deadline_s() is None


def test_pages_that_are_put_off_come_back_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_writes, "_RETRY_PIECE", 4)
    host = with_storage(settings=replace(STORAGE, breaker_failures=10_000))
    host.store(range(7), ObjectStatus.IO_ERROR)
    host.commit(range(7))
    host.answer_all()
    assert host.stat("l3_writes_put_off") == 7
    host.objects.clear()
    host.now_s += STORAGE.put_off_s
    host.tell(Tick())
    assert host.stat("l3_writes_put_off") == 3
    host.tick_while_due()
    host.answer_all()
    assert len(host.objects) == 7


def test_full_storage_is_left_alone_and_gets_everything_once_it_has_room() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_batches=1))
    host.store(range(8), ObjectStatus.FULL)
    host.commit(range(8))
    host.answer_all()
    assert host.stat("l3_writes_dropped_full") == 1
    assert host.stat("l3_writes_put_off") == 8
    assert host.stat("l3_breaker") == "closed"
    assert host.core.is_drained, "a stop does not wait for room"

    num_offered = 0
    while host.now_s < 400.0:
        due_s = host.core.next_deadline_s()
        assert due_s is not None
        assert due_s > host.now_s
        host.now_s = due_s
        host.tell(Tick())
        num_offered += len(written_names(host))
    assert num_offered < 20, "one page at a time, and ever more seldom"

    host.objects.clear()
    host.now_s += STORAGE.put_off_s
    host.tell(Tick())
    host.answer_all()
    host.tick_while_due()
    host.now_s += STORAGE.put_off_s
    host.tell(Tick())
    host.answer_all()
    assert len(host.objects) == 8


def test_storage_that_attaches_is_not_taken_for_full() -> None:
    host = with_storage()
    host.store(range(8), ObjectStatus.FULL)
    host.commit(range(8))
    host.commit(["waits"])
    host.answer_all()
    host.lose_storage()
    host.objects.clear()
    host.attach_storage(51)
    host.answer_all()
    assert make_key("waits") in host.objects


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_writes_l3_gets_all_that_l2_has(seed: int) -> None:
    draw = random.Random(seed)
    settings = replace(STORAGE, breaker_backoff_s=0.5, put_off_s=5.0, max_write_attempts=2)
    host = with_storage(512, settings)
    for step in range(300):
        match draw.choice(["answer", "answer", "commit", "look up", "time", "lose"]):
            case "answer" if host.orders:
                order = host.orders[0]
                if isinstance(order, WriteObjects) and draw.random() < 0.5:
                    host.orders.popleft()
                    codes = [ObjectStatus.IO_ERROR, ObjectStatus.FULL, ObjectStatus.CANCELLED]
                    statuses = draw.choices(codes, k=len(order.keys) // 32)
                    host.hear_storage(
                        ObjectsDone(batch_id=order.batch_id, statuses=bytes(statuses))
                    )
                else:
                    host.answer()
            case "commit" if host.granted:
                host.commit([f"{step}-{place}" for place in range(min(4, len(host.granted)))])
            case "look up":
                host.lookup(f"{step}", [f"{draw.randrange(300)}-{place}" for place in range(4)])
            case "time":
                host.now_s += draw.choice([0.01, 1.0, 20.0])
                host.tell(Tick())
            case "lose" if draw.random() < 0.2:
                host.lose_storage()
                host.attach_storage(60 + step)

    for _ in range(30):
        while host.orders or host.tick_while_due():
            host.answer_all()
        host.now_s += 5.0
        host.tell(Tick())
    assert set(ready_keys(host.core._index, 0)) <= set(host.objects)
    assert host.stat("l3_writes_put_off") == host.stat("l3_writes_pending") == 0


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
