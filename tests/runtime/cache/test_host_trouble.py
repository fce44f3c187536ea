"""The HostMemory core when storage is lost, silent or failing, and when the Scheduler is lost during lookups."""

from raydix.runtime.cache.host_events import (
    FromStorage,
    ProcessExited,
    SchedulerAttached,
    SchedulerLost,
    StorageAttached,
    StorageLost,
    StorageSettings,
    Tick,
)
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, PageSource, ReadObjects
from tests.runtime.cache.host_script import STORAGE, HostScript

L3 = PageSource.L3


def with_storage(num_pages: int = 64, settings: StorageSettings = STORAGE) -> HostScript:
    host = HostScript(num_pages, settings)
    host.tell(SchedulerAttached(1))
    host.tell(StorageAttached(50))
    return host


def test_storage_that_was_lost_fails_its_reads_and_quarantines_their_pages() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("searching", range(8, 12))
    host.lookup("reading", range(8))
    host.answer(1)
    [*_, read] = host.orders
    assert isinstance(read, ReadObjects)
    host.orders.clear()
    host.tell(StorageLost())
    assert host.sources("searching") == [PageSource.IO_ERROR] * 4
    assert host.sources("reading") == [PageSource.IO_ERROR] * 8
    assert host.watched == [50]
    assert host.stat("pages_quarantined") == 8
    host.lookup("later", range(8))
    assert host.sources("later") == [PageSource.IO_ERROR] * 8
    host.tell(FromStorage(ObjectsDone(batch_id=read.batch_id, statuses=bytes(4))))
    assert host.stat("l3_unknown_batches") == 1
    assert host.mirror == set()
    host.tell(StorageAttached(51))
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
    host.tell(SchedulerLost())
    assert host.stat("lookups") == 0
    host.answer_all()
    assert host.stat("pages_reading") == 0


def test_silent_storage_times_out_but_its_pages_stay_out_of_use() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.answer()
    due_s = host.core.next_deadline_s()
    assert due_s == host.now_s + STORAGE.deadline_s + STORAGE.overdue_margin_s
    host.now_s = due_s
    host.tell(Tick())
    assert host.sources("r") == [PageSource.TIMED_OUT] * 8
    assert host.stat("pages_reading") == 8
    assert host.stat("l3_breaker") == "open"
    assert host.stat("l3_overdue_batches") == 2
    host.answer_all()
    assert host.stat("pages_reading") == 0
    assert len(host.mirror) == 4, "the second batch was cancelled when the first came to nothing"


def test_silent_search_times_out() -> None:
    host = with_storage()
    host.lookup("r", range(8))
    host.now_s += 100.0
    host.tell(Tick())
    assert host.sources("r") == [PageSource.TIMED_OUT] * 8
    host.store(range(8))
    host.answer_all()
    assert host.stat("l3_reads_ok") == 0


def test_breaker_stops_l3_and_lets_it_come_back() -> None:
    host = with_storage()
    host.store([f"{request}{page}" for request in "abcde" for page in range(4)], ObjectStatus.IO_ERROR)

    def fetch(request: str) -> PageSource:
        host.lookup(request, [f"{request}{page}" for page in range(4)])
        host.answer_all()
        return host.sources(request)[0]

    assert fetch("a") is PageSource.IO_ERROR
    assert host.stat("l3_breaker") == "closed", "the search succeeded in between"
    for request in "bc":
        host.lookup(request, [f"{request}{page}" for page in range(4)])
    host.answer_all()
    assert host.stat("l3_breaker") == "open"
    host.store([f"d{page}" for page in range(4)])
    host.lookup("d", [f"d{page}" for page in range(4)])
    assert not host.orders
    assert host.sources("d") == [PageSource.IO_ERROR] * 4
    host.now_s += STORAGE.breaker_backoff_s
    host.lookup("d", [f"d{page}" for page in range(4)])
    host.lookup("e", [f"e{page}" for page in range(4)])
    assert host.sources("e") == [PageSource.IO_ERROR] * 4, "one probe at a time"
    host.answer_all()
    assert host.sources("d") == [L3] * 4
    assert host.stat("l3_breaker") == "closed"
