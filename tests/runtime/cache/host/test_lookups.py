"""The HostMemory core with L3: questions, shared reads, writes, faults."""

from dataclasses import replace

import pytest

from raydix.runtime.cache.host.events import (
    FlushHost,
    Tick,
)
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AskExists,
    ObjectStatus,
    PageSource,
    ReadObjects,
)
from tests.runtime.cache.host.attached_host import with_storage
from tests.runtime.cache.host.host_values import STORAGE, make_key, make_keys

L1, L2, L3 = PageSource.L1, PageSource.L2, PageSource.L3
NOT_FOUND, PENDING = PageSource.NOT_FOUND, PageSource.PENDING


def test_stored_pages_are_fetched_and_enter_the_mirror() -> None:
    host = with_storage()
    host.store(range(6))
    host.lookup("r", range(6))
    assert host.sources("r") == [PENDING] * 6
    host.answer_all()
    assert host.is_final("r")
    assert host.sources("r") == [L3] * 6
    assert host.mirror == {make_key(name)[:16] for name in range(6)}
    assert len(host.lease(1, range(6))) == 6
    host.release(1)


def test_exists_on_hit_hit_miss_hit_fetches_two() -> None:
    host = with_storage()
    host.store([0, 1, 3])
    host.lookup("r", range(4))
    host.answer()
    [read] = host.orders
    assert isinstance(read, ReadObjects)
    assert split_keys(read.keys) == [make_key(0), make_key(1)]
    host.answer_all()
    assert host.sources("r") == [L3, L3, NOT_FOUND, NOT_FOUND]


def test_miss_allocates_no_host_page() -> None:
    host = with_storage()
    before = dict(host.table)
    host.lookup("r", range(20))
    host.answer_all()
    assert host.sources("r") == [NOT_FOUND] * 20
    assert host.table == before


def test_short_hit_is_not_read() -> None:
    host = with_storage()
    host.store([0])
    host.lookup("r", range(8))
    host.answer()
    assert not host.orders
    assert host.sources("r") == [PageSource.BELOW_MIN_TOKENS] + [NOT_FOUND] * 7


def test_short_run_is_not_asked_about() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8), num_l1_pages=7)
    assert not host.orders
    assert host.sources("r") == [L1] * 7 + [PageSource.BELOW_MIN_TOKENS]


def test_page_before_many_in_l2_is_worth_a_read_for_them() -> None:
    host = with_storage()
    host.store(range(8))
    host.commit(range(1, 8))
    host.lookup("r", range(8))
    host.answer_all()
    assert host.sources("r") == [L3] + [L2] * 7


def test_only_what_l2_lacks_is_fetched() -> None:
    host = with_storage(settings=replace(STORAGE, max_write_batches=0))
    host.store(range(8))
    host.commit([2, 5])
    host.lookup("r", range(8), num_l1_pages=1)
    [find] = host.orders
    assert isinstance(find, AskExists)
    assert split_keys(find.keys) == [make_key(name) for name in (1, 3, 4, 6, 7)]
    host.answer_all()
    assert host.sources("r") == [L1, L3, L2, L3, L3, L2, L3, L3]


def test_batches_are_bounded_and_the_oldest_lookup_goes_first() -> None:
    host = with_storage(128)
    host.store([f"a{name}" for name in range(16)] + [f"b{name}" for name in range(8)])
    host.lookup("a", [f"a{name}" for name in range(16)])
    host.lookup("b", [f"b{name}" for name in range(8)])
    host.answer()
    host.answer()
    first_names = []
    while host.orders:
        assert len(host.orders) <= STORAGE.max_read_batches
        order = host.answer()
        assert isinstance(order, ReadObjects)
        assert len(order.host_page_ids) == STORAGE.batch_pages
        first_names.append(split_keys(order.keys)[0].rstrip(b".").decode())
    assert first_names == ["a0", "a4", "a8", "a12", "b0", "b4"]
    assert host.is_final("a")
    assert host.is_final("b")


def test_each_object_is_read_once_however_many_want_it() -> None:
    host = with_storage()
    host.store(range(8))
    for request in ("a", "b", "c"):
        host.lookup(request, range(8))
    for _ in range(3):
        host.answer()
    reads = [
        key
        for order in host.orders
        if isinstance(order, ReadObjects)
        for key in split_keys(order.keys)
    ]
    assert sorted(reads) == sorted(make_key(name) for name in range(8))
    host.answer_all()
    for request in ("a", "b", "c"):
        assert host.sources(request) == [L3] * 8
        assert host.is_final(request)


def test_runs_are_reported_as_they_arrive_even_out_of_order() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("r", range(8))
    host.answer()
    host.answer(1)
    assert host.sources("r") == [PENDING] * 4 + [L3] * 4
    assert not host.is_final("r")
    host.answer()
    assert host.sources("r") == [L3] * 8
    assert host.is_final("r")


@pytest.mark.parametrize(
    ("status", "source"),
    [
        (ObjectStatus.BAD_CHECKSUM, PageSource.BAD_OBJECT),
        (ObjectStatus.TOO_SHORT, PageSource.BAD_OBJECT),
        (ObjectStatus.IO_ERROR, PageSource.IO_ERROR),
        (ObjectStatus.TIMED_OUT, PageSource.TIMED_OUT),
        (ObjectStatus.CANCELLED, PageSource.IO_ERROR),
    ],
)
def test_failed_page_ends_the_prefix_and_is_counted_by_kind(
    status: ObjectStatus, source: PageSource
) -> None:
    host = with_storage()
    host.store(range(8))
    host.store([2], status)
    host.lookup("r", range(4))
    host.answer_all()
    assert host.sources("r") == [L3, L3, source, source]
    assert host.stat(f"l3_reads_{status.name.lower()}") == 1
    assert make_key(2)[:16] not in host.mirror
    assert make_key(3)[:16] in host.mirror
    assert host.stat("pages_reading") == 0


def test_object_that_vanished_since_it_existed_is_not_found() -> None:
    host = with_storage()
    host.store(range(4))
    host.lookup("r", range(4))
    host.answer()
    del host.objects[make_key(1)]
    host.answer_all()
    assert host.sources("r") == [L3] + [NOT_FOUND] * 3


def test_prefetch_fills_at_most_half_of_l2() -> None:
    host = with_storage(32)
    host.store(range(20))
    host.lookup("r", range(20))
    host.answer_all()
    assert host.sources("r") == [L3] * 16 + [PageSource.NO_HOST_PAGE] * 4


def test_staged_pages_stop_counting_when_leased_cancelled_dropped_or_old() -> None:
    host = with_storage(32)
    host.store([f"{batch}{name}" for batch in "abcd" for name in range(16)])

    def fetch(batch: str) -> int:
        host.lookup(batch, [f"{batch}{name}" for name in range(16)])
        host.answer_all()
        return host.sources(batch).count(L3)

    assert fetch("a") == 16
    assert fetch("b") == 0
    host.lease(1, [f"a{name}" for name in range(16)])
    host.release(1)
    assert fetch("b") == 16
    assert fetch("c") == 0
    host.tell(FlushHost())
    assert fetch("c") == 16
    host.now_s += STORAGE.staged_grace_s
    assert fetch("d") == 16


def test_prefetch_evicts_old_pages_but_no_leased_ones() -> None:
    host = with_storage(32, replace(STORAGE, max_write_batches=0))
    host.commit(range(24))
    host.lease(1, range(16))
    host.store([f"a{name}" for name in range(16)])
    host.lookup("r", [f"a{name}" for name in range(16)])
    host.answer_all()
    assert host.sources("r") == [L3] * 8 + [PageSource.NO_HOST_PAGE] * 8
    host.release(1)


def test_cancelled_lookup_is_answered_and_leaves_nothing() -> None:
    host = with_storage()
    host.store(range(12))
    host.lookup("r", range(12))
    host.answer()
    host.answer()
    host.cancel("r")
    assert host.is_final("r")
    assert host.sources("r") == [L3] * 4 + [PageSource.CANCELLED] * 8
    assert len(host.cancelled) == 2
    host.answer_all()
    assert host.stat("pages_reading") == 0
    assert host.stat("lookups") == 0
    host.cancel("r")
    assert len(host.end.progress["r"]) == 3


def test_a_lookup_that_is_given_up_tells_for_how_long_it_was_waited_for() -> None:
    host = with_storage()
    host.lookup("r", range(12))
    host.now_s += 0.5
    host.cancel("r")
    assert host.sources("r") == [PageSource.CANCELLED] * 12
    assert host.end.progress["r"][-1].seconds == 0.5


def test_cancel_before_the_answer_reads_nothing() -> None:
    host = with_storage()
    host.store(range(12))
    host.lookup("r", range(12), num_l1_pages=1)
    host.cancel("r")
    assert host.sources("r") == [L1] + [PageSource.CANCELLED] * 11
    host.answer_all()
    assert host.stat("l3_reads_ok") == 0


def test_reads_that_others_share_go_on_after_a_cancel() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("a", range(8))
    host.lookup("b", range(4))
    host.answer()
    host.answer()
    host.cancel("a")
    host.answer_all()
    assert host.sources("b") == [L3] * 4
    assert len(host.cancelled) == 1
    assert make_key(7)[:16] not in host.mirror


def test_read_that_was_cancelled_before_another_joined_is_read_again() -> None:
    host = with_storage()
    host.store(range(8))
    host.lookup("a", range(8))
    host.answer()
    host.cancel("a")
    host.lookup("b", range(8))
    assert isinstance(host.orders[2], AskExists)
    host.answer(2)
    host.answer_all()
    assert host.sources("b") == [L3] * 8
    assert host.stat("l3_reads_cancelled") == 8


def test_commit_beats_a_read_in_flight() -> None:
    host = with_storage()
    host.store(range(4))
    host.lookup("r", range(4))
    host.answer()
    [(page, _)] = host.commit([1])
    host.answer_all()
    assert host.sources("r") == [L3] * 4
    assert page in host.lease(1, range(4))
    host.release(1)


def test_fetched_chain_loses_its_tail_first() -> None:
    host = with_storage(32, replace(STORAGE, max_write_batches=0))
    host.store(range(12))
    host.lookup("r", range(12))
    host.answer()
    host.answer(1)
    host.answer_all()
    host.now_s += STORAGE.staged_grace_s
    host.tell(Tick())
    for name in range(22):
        host.commit([f"x{name}"])
    left = [name for name in range(12) if make_key(name)[:16] in host.mirror]
    assert 0 < len(left) < 12
    assert left == list(range(len(left)))


def test_keys_of_a_lookup_may_be_none_at_all() -> None:
    host = with_storage()
    host.lookup("r", [])
    assert host.is_final("r")
    assert host.sources("r") == []
    assert make_keys([]) == b""


def test_pages_behind_a_hole_are_not_kept_for_anybody() -> None:
    host = with_storage()
    host.store(range(8))
    host.store([2], ObjectStatus.IO_ERROR)
    host.lookup("r", range(8))
    host.answer_all()
    assert host.sources("r") == [L3, L3, *[PageSource.IO_ERROR] * 6]
    assert host.stat("pages_staged") == 2
