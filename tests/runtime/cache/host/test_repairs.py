"""When L3 lacks what it should hold, it is not asked twice, and pages are written again."""

import random
from dataclasses import replace

import pytest

from raydix.runtime.cache.host import repairs as host_repairs
from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushHost,
    RetireStorage,
    Tick,
)
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AskExists,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    WriteObjects,
)
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key
from tests.runtime.cache.host.host_world import ready_keys

L2, L3, NOT_FOUND = PageSource.L2, PageSource.L3, PageSource.NOT_FOUND


def look_up(host: HostScript, request: str, names: range) -> list[PageSource]:
    host.lookup(request, names)
    host.answer_all()
    return host.sources(request)


def test_a_miss_is_not_asked_about_again_for_a_moment_and_nobody_waits() -> None:
    host = with_storage()
    assert look_up(host, "a", range(8)) == [NOT_FOUND] * 8
    host.store(range(8))
    host.lookup("b", range(8))
    assert not host.orders
    assert host.sources("b") == [NOT_FOUND] * 8
    assert host.stat("l3_pages_known_missing") == 8
    host.now_s += STORAGE.missing_ttl_s
    assert look_up(host, "c", range(8)) == [L3] * 8, "what another engine wrote meanwhile is found"


def test_what_comes_before_a_missing_page_is_still_fetched() -> None:
    host = with_storage()
    host.store(range(4))
    assert look_up(host, "a", range(8)) == [L3] * 4 + [NOT_FOUND] * 4
    host.tell(FlushHost())
    host.lookup("b", range(8))
    [question] = host.orders
    assert isinstance(question, AskExists)
    assert len(question.keys) == 4 * 32
    host.answer_all()
    assert host.sources("b") == [L3] * 4 + [NOT_FOUND] * 4


def test_a_name_that_this_engine_writes_is_known_at_once() -> None:
    host = with_storage()
    look_up(host, "a", range(4))
    host.commit(range(4))
    host.answer_all()
    host.tell(FlushHost())
    assert look_up(host, "b", range(4)) == [L3] * 4


def test_a_bad_object_counts_as_missing_once_it_has_been_read() -> None:
    host = with_storage()
    host.store(range(4), ObjectStatus.BAD_CHECKSUM)
    assert look_up(host, "a", range(4)) == [PageSource.BAD_OBJECT] * 4
    host.lookup("b", range(4))
    assert not host.orders
    assert host.sources("b") == [NOT_FOUND] * 4


def test_pages_that_l3_lost_behind_our_back_are_written_again_when_they_are_used() -> None:
    host = with_storage()
    host.commit(range(8))
    host.answer_all()
    host.objects.clear()
    look_up(host, "a", range(8))
    assert not host.objects, "they were written a moment ago"
    host.now_s += STORAGE.exists_interval_s
    assert look_up(host, "b", range(8)) == [L2] * 8
    assert set(host.objects) == {make_key(name) for name in range(8)}
    assert host.stat("l3_pages_lacking") == 8
    num_asked_about = host.stat("l3_pages_asked_about")
    look_up(host, "c", range(8))
    assert host.stat("l3_pages_asked_about") == num_asked_about
    host.now_s += STORAGE.exists_interval_s
    look_up(host, "d", range(8))
    assert host.stat("l3_pages_lacking") == 8, "nothing is written that is there"


def test_page_that_was_read_as_missing_but_committed_meanwhile_is_written() -> None:
    host = with_storage()
    host.store(range(4))
    host.lookup("a", range(4))
    host.answer()
    host.commit(range(4))
    [read, *writes] = list(host.orders)
    host.orders.clear()
    for write in writes:
        assert isinstance(write, WriteObjects)
        host.hear_storage(
            ObjectsDone(batch_id=write.batch_id, statuses=bytes(len(write.keys) // 32))
        )
    host.answer_all()
    host.objects.clear()
    host.orders.append(read)
    host.answer_all()
    assert set(host.objects) == {make_key(name) for name in range(4)}


def test_attached_storage_gets_the_pages_that_l2_holds_and_it_lacks() -> None:
    host = HostScript(64)
    host.attach_scheduler()
    host.commit(range(8))
    host.store([0, 1, 2])
    host.attach_storage(50)
    assert not host.core.is_drained
    host.answer_all()
    assert set(host.objects) == {make_key(name) for name in range(8)}
    assert host.stat("l3_pages_written") == 5
    assert host.core.is_drained


def test_attached_storage_gets_the_chains_in_use_first_and_each_from_its_head_on() -> None:
    host = HostScript(256, replace(STORAGE, max_write_batches=1, exists_deadline_s=1e3))
    host.attach_scheduler()
    host.attach_storage(50)
    host.tell(RetireStorage())
    host.tell(DetachStorage())
    host.commit(range(60))
    host.lookup("a", range(20, 40))
    host.lookup("b", range(20))
    host.attach_storage(51)
    assert host.stat("l3_writes_pending") == 60
    written: list[bytes] = []
    while host.orders:
        order = host.answer()
        if isinstance(order, WriteObjects):
            written += [order.keys[start : start + 32] for start in range(0, len(order.keys), 32)]
    assert written[:40] == [make_key(name) for name in range(40)]
    assert len(written) == 60


def test_storage_that_comes_back_empty_is_filled_again() -> None:
    host = with_storage()
    host.commit(range(8))
    host.answer_all()
    host.lose_storage()
    host.objects.clear()
    host.attach_storage(51)
    host.answer_all()
    assert set(host.objects) == {make_key(name) for name in range(8)}


def test_a_name_is_queued_once() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_batches=1, exists_interval_s=1.0))
    host.commit(range(6))
    assert host.stat("l3_writes_pending") == 6
    host.lookup("a", range(6))
    host.now_s += 1.0
    host.lookup("b", range(6))
    assert not any(isinstance(order, AskExists) for order in host.orders), "L3 is to get them"
    host.answer_all()
    assert host.stat("l3_pages_written") == 6


def test_question_about_pages_of_l2_without_an_answer_is_given_up() -> None:
    host = with_storage()
    host.commit(range(4))
    host.answer_all()
    host.attach_storage(51)
    [question] = host.orders
    assert isinstance(question, AskExists)
    host.orders.clear()
    host.now_s += STORAGE.exists_interval_s / 2
    host.lookup("a", range(4))
    assert host.stat("l3_overdue_batches") == 1
    assert host.core.is_drained


def attach_with_question(num_pages: int) -> tuple[HostScript, AskExists]:
    """An empty backend has attached, and is being asked about all that L2 holds."""
    host = HostScript(64)
    host.attach_scheduler()
    host.commit(range(num_pages))
    host.attach_storage(50)
    [question] = host.orders
    assert isinstance(question, AskExists)
    host.orders.clear()
    return host, question


def wait_until_drained(host: HostScript, until_s: float) -> None:
    """Answer all, and give every tick when it is due."""
    host.answer_all()
    while (due_s := host.core.next_deadline_s()) is not None and due_s <= until_s:
        host.now_s = max(host.now_s, due_s)
        host.tell(Tick())
        host.answer_all()


def test_page_whose_question_failed_is_asked_about_again_though_nobody_uses_it() -> None:
    host, question = attach_with_question(4)
    statuses = [ObjectStatus.MISSING, ObjectStatus.IO_ERROR, ObjectStatus.MISSING]
    answer = bytes([*statuses, ObjectStatus.TIMED_OUT])
    host.hear_storage(ObjectsDone(batch_id=question.batch_id, statuses=answer))
    host.answer_all()
    assert set(host.objects) == {*split_keys(question.keys)[::2]}
    assert host.core.is_drained

    wait_until_drained(host, host.now_s + STORAGE.exists_interval_s)

    assert set(host.objects) == {make_key(name) for name in range(4)}
    assert host.stat("l3_pages_asked_about") == 6


def test_pages_whose_question_was_overdue_are_asked_about_again_though_nobody_uses_them() -> None:
    host, _ = attach_with_question(4)

    wait_until_drained(host, host.now_s + 2 * STORAGE.exists_interval_s)

    assert host.stat("l3_overdue_batches") == 1
    assert set(host.objects) == {make_key(name) for name in range(4)}


@pytest.mark.parametrize("seed", range(5))
def test_attached_storage_is_offered_every_page_whatever_happens_meanwhile(seed: int) -> None:
    draw = random.Random(seed)
    host = HostScript(512, replace(STORAGE, exists_interval_s=1e9))
    host.attach_scheduler()
    host.commit([f"old{name}" for name in range(440)])
    host.attach_storage(50)
    for step in range(400):
        match draw.choice(["answer", "answer", "answer", "commit", "look up", "tick"]):
            case "answer" if host.orders:
                host.answer(draw.randrange(len(host.orders)))
            case "commit":
                host.commit([f"new{step}"])
            case "look up":
                first = draw.randrange(430)
                host.lookup(f"{step}", [f"old{name}" for name in range(first, first + 4)])
            case "tick":
                host.now_s += 0.001
                host.tell(Tick())
    while host.orders or host.tick_while_due():
        host.answer_all()
    lacking = [key for key in ready_keys(host.core._index, 0) if key not in host.objects]
    assert not lacking
    assert host.core.is_drained


def test_pages_in_use_are_asked_about_ahead_of_the_walk_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_repairs, "_WALK_PAGES", 4)
    host = HostScript(256)
    host.attach_scheduler()
    host.commit(range(20))
    host.attach_storage(50)
    host.lookup("a", range(20))
    host.answer_all()
    host.tick_while_due()
    host.answer_all()
    assert host.core.next_deadline_s() is None
    assert len(host.objects) == 20
    assert host.stat("l3_pages_asked_about") == 20
