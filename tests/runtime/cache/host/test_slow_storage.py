"""When L3 answers later than it did: what is believed of it is tested, however it is wrong."""

from dataclasses import replace

import pytest

from raydix.runtime.cache.host.events import Tick
from raydix.runtime.messages.host import (
    AskExists,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    ReadObjects,
    WriteObjects,
)
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key

L3 = PageSource.L3


def pages(request: str) -> list[str]:
    return [f"{request}{page}" for page in range(4)]


def pass_time(host: HostScript, seconds: float) -> None:
    """Time passes, and the clock strikes whenever the core has asked for that."""
    end_s = host.now_s + seconds
    while (due_s := host.core.next_deadline_s()) is not None and due_s < end_s:
        host.now_s = max(host.now_s, due_s)
        host.tell(Tick())
    host.now_s = end_s
    host.tell(Tick())


def fetch(host: HostScript, request: str, *, exists_s: float = 0.0, read_s: float = 0.0) -> bool:
    """Whether a lookup of four pages, which L3 has, gets them from L3 with such answers."""
    host.store(pages(request))
    host.lookup(request, pages(request))
    for seconds in (exists_s, read_s):
        pass_time(host, seconds)
        for _ in range(len(host.orders)):
            host.answer()
    return host.sources(request) == [L3] * 4


@pytest.mark.parametrize("slow_s", [0.5, 1.9, 2.1, 3.0, 5.0, 9.0])
@pytest.mark.parametrize("what", ["exists_s", "read_s"])
def test_every_lookup_is_served_once_answers_take_longer(what: str, slow_s: float) -> None:
    host = with_storage(num_pages=256)
    for number in range(4):
        assert fetch(host, f"fast{number}-")
    fetch(host, "first-", **{what: slow_s})
    pass_time(host, 30.0)
    host.answer_all()
    assert all(fetch(host, f"slow{number}-", **{what: slow_s}) for number in range(8))


@pytest.mark.parametrize("slow_s", [0.5, 2.1, 9.0])
def test_every_lookup_is_served_where_answers_are_slow_from_the_start(slow_s: float) -> None:
    host = with_storage(num_pages=256)
    fetch(host, "first-", exists_s=slow_s, read_s=slow_s)
    assert all(fetch(host, f"slow{number}-", exists_s=slow_s, read_s=slow_s) for number in range(8))


def test_patience_shrinks_again_with_fast_answers() -> None:
    host = with_storage(num_pages=256)
    fetch(host, "slow-", read_s=9.0)
    for number in range(16):
        fetch(host, f"fast{number}-")
    host.lookup("silent", pages("slow-x"))
    host.store(pages("silent-"))
    host.lookup("silent-", pages("silent-"))
    host.answer(1)
    pass_time(host, STORAGE.min_read_patience_s)
    assert host.sources("silent-") == [PageSource.TIMED_OUT] * 4


def test_orders_under_way_have_the_time_that_late_answers_to_others_took() -> None:
    host = with_storage()
    assert fetch(host, "fast-")
    host.store(pages("a"))
    host.lookup("a", pages("a"))
    host.answer()
    pass_time(host, 4.0)
    assert host.sources("a") == [PageSource.TIMED_OUT] * 4
    host.answer()
    assert len(host.orders) == 1, "the probe, which was given 2 s"
    pass_time(host, 3.0)
    assert host.stat("l3_breaker") == "closed"
    assert host.stat("l3_overdue_batches") == 1


def test_answer_that_no_request_could_have_waited_for_brings_the_next_probe_forward() -> None:
    host = with_storage()
    assert fetch(host, "fast-")
    host.store(pages("a"))
    host.lookup("a", pages("a"))
    [question] = host.orders
    host.now_s += 2.0
    host.tell(Tick())
    host.now_s += STORAGE.patience_s
    host.hear_storage(ObjectsDone(batch_id=question.batch_id, statuses=bytes(4)))
    assert host.stat("l3_breaker") == "half_open"
    host.orders.popleft()
    [probe] = host.orders
    assert isinstance(probe, AskExists)


def test_writes_that_take_long_go_on() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_batches=1))
    for number in range(8):
        host.commit([number])
        pass_time(host, 18.0)
        host.answer_all()
        pass_time(host, 1.0)
    assert host.stat("l3_pages_written") == 8
    assert host.stat("l3_overdue_batches") == 1, "the first one alone"


def test_writes_go_on_while_reads_are_slow() -> None:
    host = with_storage(num_pages=256)
    for number in range(4):
        fetch(host, f"fast{number}-")
    fetch(host, "slow-", read_s=5.0)
    host.commit(["new"])
    assert [type(order) for order in host.orders] == [WriteObjects]


def test_slow_storage_that_nobody_asks_is_asked_how_slow_it_is() -> None:
    host = with_storage()
    assert fetch(host, "slow-", exists_s=0.75, read_s=0.75)
    assert host.end.knows_answer_s == 1.0
    for kind in (AskExists, ReadObjects):
        due_s = host.core.next_deadline_s()
        assert due_s is not None
        pass_time(host, due_s - host.now_s)
        assert [type(order) for order in host.orders] == [kind]
        host.answer()
    assert host.end.knows_answer_s == 0.0, "one fast answer shows that it has recovered"
    pass_time(host, 100 * STORAGE.recheck_interval_s)
    assert not host.orders


def test_one_object_that_cannot_be_read_does_not_keep_l3_off() -> None:
    host = with_storage(settings=replace(STORAGE, breaker_failures=1))
    assert fetch(host, "good-")
    host.store(pages("bad"), ObjectStatus.IO_ERROR)
    host.lookup("bad", pages("bad"))
    host.answer_all()
    assert host.stat("l3_breaker") == "open"
    keys = []
    for _ in range(2):
        pass_time(host, STORAGE.breaker_max_backoff_s)
        keys += [order.keys for order in host.orders if isinstance(order, ReadObjects)]
        host.answer_all()
    assert keys == [make_key("bad0"), make_key("good-0")]
    assert host.stat("l3_breaker") == "closed"


def test_stats_say_why_l3_is_off_and_since_when() -> None:
    host = with_storage()
    assert fetch(host, "fast-")
    assert "l3_off_kind" not in host.core.stats()
    host.store(pages("a"))
    host.lookup("a", pages("a"))
    host.answer()
    pass_time(host, 2.0)
    tripped_s = host.now_s
    pass_time(host, 20.0)
    assert host.stat("l3_off_kind") == "read"
    assert host.stat("l3_off_cause") == "late"
    assert host.stat("l3_off_since_s") == tripped_s
    host.answer_all()
    pass_time(host, 0.0)
    host.answer_all()
    assert "l3_off_kind" not in host.core.stats()


def test_backend_is_given_the_time_that_it_brings() -> None:
    host = with_storage(num_pages=256)
    host.attach_storage(51, patience_s=40.0)
    assert not fetch(host, "first-", exists_s=30.0)
    assert all(fetch(host, f"slow{number}-", exists_s=30.0, read_s=30.0) for number in range(3))
