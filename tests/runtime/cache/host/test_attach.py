"""The HostMemory core when L3 is attached, switched and detached while requests go on."""

from dataclasses import replace

from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushStorage,
    ProcessExited,
    RetireStorage,
    Tick,
)
from raydix.runtime.messages.host import ObjectStatus, PageSource, ReadObjects, WriteObjects
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key

L3 = PageSource.L3


def without_storage(num_pages: int = 64) -> HostScript:
    host = HostScript(num_pages)
    host.attach_scheduler()
    return host


def with_storage(num_pages: int = 64) -> HostScript:
    host = HostScript(num_pages, STORAGE)
    host.attach_scheduler()
    host.attach_storage(50)
    return host


def test_scheduler_is_told_at_once_and_again_when_l3_comes_and_goes() -> None:
    host = without_storage()
    assert host.end.knows_storage is False
    host.attach_storage(50)
    assert host.end.knows_storage is True
    host.lose_storage()
    assert host.end.knows_storage is True, "it will be made again"
    host.tell(RetireStorage())
    assert host.end.knows_storage is False
    host.attach_storage(51)
    host.end.knows_storage = None
    host.lose_scheduler()
    host.attach_scheduler()
    assert host.end.knows_storage is True


def test_attached_storage_serves_lookups_and_takes_new_pages() -> None:
    host = without_storage()
    host.lookup("before", range(8))
    assert host.sources("before") == [PageSource.NOT_FOUND] * 8
    host.attach_storage(50)
    host.store(range(8))
    host.lookup("after", range(8))
    host.commit(["new"])
    host.answer_all()
    assert host.sources("after") == [L3] * 8
    assert make_key("new") in host.objects


def test_retired_storage_is_asked_nothing_and_its_orders_end() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("reading", range(8))
    host.answer()
    host.lookup("asking", range(20, 28))
    host.commit([40, 41])
    assert len(host.orders) == 5
    host.tell(RetireStorage())
    assert host.sources("reading") == [PageSource.CANCELLED] * 8
    assert host.sources("asking") == [PageSource.CANCELLED] * 8
    assert host.num_retirements == 0
    host.lookup("later", range(8))
    assert host.sources("later") == [PageSource.NOT_FOUND] * 8
    host.commit(["later"])
    assert len(host.orders) == 5
    host.answer_all()
    assert host.num_retirements == 1
    assert {make_key(name) for name in (40, 41)} <= set(host.objects), (
        "writes under way are finished"
    )
    assert host.stat("pages_reading") == host.stat("l3_writes_pending") == 0
    host.tell(DetachStorage())
    assert host.watched == [50]
    assert host.stat("l3_breaker") == "none"


def test_page_that_has_arrived_stays_when_the_rest_is_cancelled() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.answer()
    host.answer()
    host.tell(RetireStorage())
    assert host.sources("r") == [L3] * 4 + [PageSource.CANCELLED] * 4
    assert len(host.lease(1, range(8))) == 4


def test_queued_writes_of_a_retired_storage_are_dropped_and_counted() -> None:
    host = with_storage(256)
    host.commit(range(10))
    host.store([0], ObjectStatus.IO_ERROR)
    num_sent = sum(
        len(order.keys) // 32 for order in host.orders if isinstance(order, WriteObjects)
    )
    host.tell(RetireStorage())
    assert host.stat("l3_writes_dropped_detached") == 10 - num_sent
    host.answer_all()
    assert host.stat("l3_writes_dropped_detached") == 10 - num_sent + 1, (
        "what failed is not tried again"
    )
    assert host.core.is_drained


def test_storage_that_hangs_is_detached_and_its_pages_kept_until_it_has_exited() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.answer()
    host.commit(["w"])
    assert any(isinstance(order, ReadObjects) for order in host.orders)
    host.tell(RetireStorage())
    host.orders.clear()
    host.tell(DetachStorage())
    assert host.num_retirements == 1
    assert host.stat("pages_quarantined") == 8
    assert host.stat("l3_writes_dropped_detached") == 1
    assert host.stat("storage_losses") == 0
    host.tell(ProcessExited(50))
    assert host.stat("pages_quarantined") == 0
    assert host.core._index.num_readers == 0


def test_detaching_twice_changes_nothing_and_attaching_again_works() -> None:
    host = with_storage()
    for _ in range(2):
        host.tell(RetireStorage())
        host.tell(DetachStorage())
    assert host.num_retirements == 2
    host.tell(FlushStorage())
    assert host.flushed == [ObjectStatus.MISSING]
    host.attach_storage(51)
    host.commit(["a"])
    host.answer_all()
    assert make_key("a") in host.objects


def test_flush_that_waits_is_answered_when_storage_is_retired() -> None:
    host = with_storage()
    host.commit(["a"])
    host.tell(FlushStorage())
    host.tell(RetireStorage())
    assert host.flushed == [ObjectStatus.CANCELLED]
    host.answer_all()
    assert host.num_retirements == 1
    assert make_key("a") in host.objects


def test_storage_lost_while_it_retires_is_not_expected_back() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.tell(RetireStorage())
    host.lose_storage()
    assert host.num_retirements == 1
    host.orders.clear()
    host.lookup("later", range(8))
    assert host.sources("later") == [PageSource.NOT_FOUND] * 8


def test_silent_storage_can_be_replaced() -> None:
    host = HostScript(64, replace(STORAGE, breaker_failures=1))
    host.attach_scheduler()
    host.attach_storage(50)
    host.store(range(8))
    host.lookup("r", range(8))
    host.now_s += 100.0
    host.tell(Tick())
    assert host.stat("l3_breaker") == "open"
    host.orders.clear()
    host.tell(RetireStorage())
    host.tell(DetachStorage())
    host.attach_storage(51)
    assert host.stat("l3_breaker") == "closed"
    host.lookup("again", range(8))
    host.answer_all()
    assert host.sources("again") == [L3] * 8
