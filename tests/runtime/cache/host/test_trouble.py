"""When storage is lost, silent or failing, and when the Scheduler is lost during lookups."""

from dataclasses import replace

from raydix.runtime.cache.host.events import (
    FromStorage,
    ProcessExited,
    Tick,
)
from raydix.runtime.messages.host import (
    AskExists,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    ReadObjects,
)
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key

L3 = PageSource.L3


def test_storage_that_was_lost_fails_its_reads_and_quarantines_their_pages() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("asking", range(8, 12))
    host.lookup("reading", range(8))
    host.answer(1)
    [*_, read] = host.orders
    assert isinstance(read, ReadObjects)
    lost = host.storage
    assert lost is not None
    host.lose_storage()
    assert host.sources("asking") == [PageSource.IO_ERROR] * 4
    assert host.sources("reading") == [PageSource.IO_ERROR] * 8
    assert host.watched == [50]
    assert host.stat("pages_quarantined") == 8
    host.lookup("later", range(8))
    assert host.sources("later") == [PageSource.IO_ERROR] * 8
    host.tell(FromStorage(lost, ObjectsDone(batch_id=read.batch_id, statuses=bytes(4))))
    assert host.stat("stale_events") == 1
    assert host.mirror == set()
    host.attach_storage(51)
    host.lookup("again", range(8))
    host.answer_all()
    assert host.sources("again") == [L3] * 8
    assert host.stat("pages_quarantined") == 8
    host.tell(ProcessExited(50))
    assert host.stat("pages_quarantined") == 0


def test_lost_scheduler_forgets_its_lookups() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("a", range(8))
    host.answer()
    host.lose_scheduler()
    assert host.stat("lookups") == 0
    host.answer_all()
    assert host.stat("pages_reading") == 0


def test_silent_storage_times_out_but_its_pages_stay_out_of_use() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.answer()
    due_s = host.core.next_deadline_s()
    assert due_s == host.now_s + STORAGE.patience_s + STORAGE.overdue_margin_s
    host.now_s = due_s
    host.tell(Tick())
    assert host.sources("r") == [PageSource.TIMED_OUT] * 8
    assert host.stat("pages_reading") == 8
    assert host.stat("l3_breaker") == "open"
    assert host.stat("l3_overdue_batches") == 2
    host.answer_all()
    assert host.stat("pages_reading") == 0
    assert len(host.mirror) == 4, "the second batch was cancelled when the first came to nothing"


def test_question_without_an_answer_times_out() -> None:
    host = with_storage()
    host.lookup("r", range(8))
    host.now_s += 100.0
    host.tell(Tick())
    assert host.sources("r") == [PageSource.TIMED_OUT] * 8
    host.store(range(8))
    host.answer_all()
    assert host.stat("l3_reads_ok") == 0


def pages(request: str) -> list[str]:
    return [f"{request}{page}" for page in range(4)]


def test_reads_that_fail_stop_l3_however_well_it_answers_questions() -> None:
    host = with_storage()
    host.store(pages("a") + pages("b") + pages("c"), ObjectStatus.IO_ERROR)
    for request in "ab":
        host.lookup(request, pages(request))
        host.answer_all()
        assert host.sources(request) == [PageSource.IO_ERROR] * 4
    assert host.stat("l3_breaker") == "open"
    host.lookup("c", pages("c"))
    assert host.sources("c") == [PageSource.IO_ERROR] * 4
    assert not host.orders


def test_clock_finds_out_that_reads_work_again_and_no_request_waits_for_that() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=1))
    host.store(pages("a"), ObjectStatus.IO_ERROR)
    host.lookup("a", pages("a"))
    host.answer_all()
    assert host.core.next_deadline_s() == host.now_s + STORAGE.breaker_backoff_s
    pass_time(host, STORAGE.breaker_backoff_s)
    [probe] = host.orders
    assert isinstance(probe, ReadObjects)
    assert probe.keys == make_key("a0")
    assert host.stat("pages_reading") == 1
    host.lookup("b", pages("b"))
    assert host.sources("b") == [PageSource.IO_ERROR] * 4, "nor is it the next probe"
    host.answer_all()
    assert host.stat("l3_breaker") == "open"
    assert host.stat("pages_reading") == 0
    assert host.core.next_deadline_s() == host.now_s + 2 * STORAGE.breaker_backoff_s
    host.store(pages("a"))
    pass_time(host, 2 * STORAGE.breaker_backoff_s)
    host.answer_all()
    assert host.stat("l3_breaker") == "closed"
    assert host.mirror == set(), "what a probe reads is for nobody"
    host.lookup("a again", pages("a"))
    host.answer_all()
    assert host.sources("a again") == [L3] * 4
    assert host.core.next_deadline_s() == host.now_s + STORAGE.staged_grace_s


def test_first_question_without_an_answer_frees_every_request_that_waits_for_one() -> None:
    host = with_storage()
    host.store(pages("a") + pages("b"))
    host.lookup("a", pages("a"))
    due_s = host.core.next_deadline_s()
    assert due_s == host.now_s + STORAGE.exists_deadline_s + 4 * STORAGE.exists_deadline_per_page_s
    host.now_s += 0.5
    host.lookup("b", pages("b"))
    host.now_s = due_s
    host.tell(Tick())
    assert host.sources("a") == host.sources("b") == [PageSource.TIMED_OUT] * 4
    host.lookup("c", pages("a"))
    assert host.sources("c") == [PageSource.IO_ERROR] * 4
    host.answer()
    assert host.stat("l3_breaker") == "closed", "a late answer is one"
    host.lookup("d", pages("a"))
    host.answer_all()
    assert host.sources("d") == [L3] * 4


def test_answer_may_take_its_time_for_each_page_that_is_asked_about() -> None:
    host = with_storage()
    host.lookup("long", range(500))
    host.lookup("short", range(500, 504))
    [long, short] = host.orders
    per_page_s = STORAGE.exists_deadline_per_page_s
    assert isinstance(long, AskExists)
    assert isinstance(short, AskExists)
    assert long.deadline_s == STORAGE.exists_deadline_s + 500 * per_page_s
    assert short.deadline_s == STORAGE.exists_deadline_s + 504 * per_page_s, (
        "it waits for the one before"
    )


def test_read_is_silent_when_it_takes_several_times_as_long_as_others_did() -> None:
    host = with_storage()
    host.store(pages("a") + pages("b") + pages("c"))
    host.lookup("a", pages("a"))
    host.answer()
    host.now_s += 2.0
    host.answer()
    host.lookup("b", pages("b"))
    host.answer()
    assert host.core.next_deadline_s() == host.now_s + 4.0
    pass_time(host, 4.0)
    assert host.sources("b") == [PageSource.TIMED_OUT] * 4
    assert host.stat("l3_breaker") == "open"


def test_quick_reads_do_not_make_l3_impatient() -> None:
    host = with_storage()
    host.store(pages("a") + pages("b"))
    for request in "ab":
        host.lookup(request, pages(request))
        host.answer()
        if request == "a":
            host.answer()
    assert host.core.next_deadline_s() == host.now_s + STORAGE.min_read_patience_s


def test_storage_that_answers_nothing_is_given_a_bounded_number_of_pages() -> None:
    host = with_storage()
    host.store(pages("a"))
    host.lookup("a", pages("a"))
    host.answer()
    for _ in range(100):
        pass_time(host, STORAGE.patience_s + STORAGE.overdue_margin_s)
    assert len(host.orders) <= 10
    assert host.stat("pages_reading") == 4 + len(host.orders) - 1
    assert host.core.next_deadline_s() is None
    host.answer_all()
    assert host.stat("pages_reading") == 0
    assert host.stat("l3_breaker") == "closed"


def test_writes_that_fail_do_not_stop_reads() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=1))
    host.store(pages("a"))
    host.store(["bad"], ObjectStatus.IO_ERROR)
    host.commit(["bad"])
    host.answer_all()
    assert host.stat("l3_breaker") == "open"
    host.lookup("a", pages("a"))
    host.answer_all()
    assert host.sources("a") == [L3] * 4


def pass_time(host: HostScript, seconds: float) -> None:
    host.now_s += seconds
    host.tell(Tick())
