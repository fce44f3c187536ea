"""The HostMemory core with two KV groups: one chain, one useful prefix."""

from dataclasses import replace

import pytest

from raydix.errors import AccountingError
from raydix.ids import LeaseId, LookupId
from raydix.runtime.cache.host.events import Tick
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AskExists,
    LeasePages,
    Lookup,
    ObjectStatus,
    PageSource,
    ReadObjects,
    Urgency,
)
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key, make_keys

L1, L2, L3 = PageSource.L1, PageSource.L2, PageSource.L3
NOT_FOUND, PENDING = PageSource.NOT_FOUND, PageSource.PENDING
QUIET = replace(STORAGE, max_write_batches=0)


def with_two_groups(storage: StorageSettings | None = QUIET, num_pages: int = 128) -> HostScript:
    """Pages of the second group take twice as much room."""
    host = HostScript(num_pages, storage, num_slabs=8, page_sizes=(1, 2))
    host.attach_scheduler()
    if storage is not None:
        host.attach_storage(50)
    return host


def both_sources(host: HostScript, request: str) -> list[list[PageSource]]:
    return [host.sources(request, group) for group in (0, 1)]


def reads_in_flight(host: HostScript) -> list[tuple[int, list[bytes]]]:
    """Group and names of each read."""
    return [
        (order.group, [key.rstrip(b".") for key in split_keys(order.keys)])
        for order in host.orders
        if isinstance(order, ReadObjects)
    ]


def test_lookup_reports_every_group_by_itself() -> None:
    host = with_two_groups(None)
    host.commit(range(4))
    host.commit(range(4), group=1)
    host.lookup("r", range(4), num_l1_pages=(1, 3))
    assert both_sources(host, "r") == [[L1, L2, L2, L2], [L1, L1, L1, L2]]
    assert host.is_final("r")


def test_page_that_one_group_lacks_ends_the_prefix_of_all_but_takes_nothing_from_l1() -> None:
    host = with_two_groups(None)
    host.commit(range(6))
    host.commit([0, 1, 3, 4, 5], group=1)
    host.lookup("r", range(6), num_l1_pages=(4, 0))
    assert both_sources(host, "r") == [
        [L1, L1, L1, L1, NOT_FOUND, NOT_FOUND],
        [L2, L2, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND],
    ]


def test_nothing_is_read_behind_the_first_page_that_l3_lacks_in_some_group() -> None:
    host = with_two_groups()
    host.store(range(8))
    host.store(range(3), group=1)
    host.lookup("r", range(8))
    questions = [order for order in host.orders if isinstance(order, AskExists)]
    assert [question.group for question in questions] == [0, 1]
    host.answer()
    assert not reads_in_flight(host), "the answer for the other group may end the prefix earlier"
    host.answer()
    assert reads_in_flight(host) == [(0, [b"0", b"1", b"2"]), (1, [b"0", b"1", b"2"])]
    host.answer_all()
    assert both_sources(host, "r") == [[L3] * 3 + [NOT_FOUND] * 5] * 2
    assert host.end.mirror_of == [{make_key(name)[:16] for name in range(3)}] * 2


def test_question_that_is_answered_first_may_be_any_groups() -> None:
    host = with_two_groups()
    host.store(range(3))
    host.store(range(8), group=1)
    host.lookup("r", range(8))
    host.answer(1)
    host.answer_all()
    assert both_sources(host, "r") == [[L3] * 3 + [NOT_FOUND] * 5] * 2
    assert host.stat("l3_reads_ok") == 6


def test_prefixes_of_the_groups_grow_together() -> None:
    host = with_two_groups(replace(QUIET, max_read_batches=1))
    for group in (0, 1):
        host.store(range(8), group=group)
    host.lookup("r", range(8))
    host.answer()
    host.answer()
    read = []
    while host.orders:
        read += reads_in_flight(host)
        host.answer()
    assert read == [
        (0, [b"0", b"1", b"2", b"3"]),
        (1, [b"0", b"1", b"2", b"3"]),
        (0, [b"4", b"5", b"6", b"7"]),
        (1, [b"4", b"5", b"6", b"7"]),
    ]


def test_failed_read_of_one_group_cancels_what_the_others_would_read_behind_it() -> None:
    host = with_two_groups()
    for group in (0, 1):
        host.store(range(12), group=group)
    host.store([1], ObjectStatus.BAD_CHECKSUM, group=1)
    host.lookup("r", range(12))
    host.answer()
    host.answer()
    host.answer(1)
    assert both_sources(host, "r") == [
        [PENDING] + [PageSource.BAD_OBJECT] * 11,
        [L3] + [PageSource.BAD_OBJECT] * 11,
    ]
    host.answer_all()
    assert both_sources(host, "r") == [[L3] + [PageSource.BAD_OBJECT] * 11] * 2
    assert host.stat("l3_reads_ok") == 4 + 3, "one batch of each group"
    host.tick_while_due()
    assert host.stat("pages_staged") == 2


def test_each_group_is_known_to_lack_its_own_pages() -> None:
    host = with_two_groups()
    for group in (0, 1):
        host.store(range(8), group=group)
    del host.objects_of[1][make_key(4)]
    host.lookup("a", range(8))
    host.answer_all()
    host.lookup("b", range(8))
    assert not host.orders
    assert both_sources(host, "b") == [[L2] * 4 + [NOT_FOUND] * 4] * 2


def test_full_stage_of_one_group_ends_the_prefix_of_all() -> None:
    host = with_two_groups(num_pages=32)
    for group in (0, 1):
        host.store(range(12), group=group)
    host.lookup("r", range(12))
    host.answer_all()
    assert host.core._staged.max_pages == (8, 4)
    assert both_sources(host, "r") == [[L3] * 4 + [PageSource.NO_HOST_PAGE] * 8] * 2


def test_hints_are_bounded_in_each_group() -> None:
    host = with_two_groups(num_pages=32)
    for group in (0, 1):
        host.store(range(6), group=group)
    host.lookup("h", range(6), urgency=Urgency.HINT)
    host.answer_all()
    assert both_sources(host, "h") == [[L3] * 4 + [PageSource.NO_HOST_PAGE] * 2] * 2


def test_cancel_ends_the_reads_of_all_groups() -> None:
    host = with_two_groups()
    for group in (0, 1):
        host.store(range(8), group=group)
    host.lookup("r", range(8))
    host.answer()
    host.answer()
    host.cancel("r")
    assert host.is_final("r")
    assert both_sources(host, "r") == [[PageSource.CANCELLED] * 8] * 2
    assert len(host.cancelled) == 2
    host.answer_all()
    assert host.stat("pages_reading") == host.stat("pages_staged") == 0


def test_lost_storage_ends_the_questions_of_all_groups() -> None:
    host = with_two_groups()
    host.commit([0, 1])
    host.lookup("r", range(8))
    host.lose_storage()
    assert both_sources(host, "r") == [[PageSource.IO_ERROR] * 8] * 2
    assert host.stat("lookups") == 0


def test_overdue_question_of_one_group_leaves_nothing_to_wait_for_in_the_others() -> None:
    host = with_two_groups()
    host.commit(range(4))
    for group in (0, 1):
        host.store(range(8), group=group)
    host.lookup("r", range(8))
    host.answer(1)
    host.now_s += 100.0
    host.tell(Tick())
    # What group 0 lacks was asked about; what group 1 lacks is not read, for L3 is left alone.
    reasons = [PageSource.IO_ERROR] * 4 + [PageSource.TIMED_OUT] * 4
    assert both_sources(host, "r") == [reasons] * 2
    host.answer_all()
    assert host.stat("lookups") == host.stat("pages_reading") == 0


def test_lease_runs_end_together_at_the_first_page_that_a_group_lacks() -> None:
    host = with_two_groups(None)
    pages = [host.commit(range(8), group) for group in (0, 1)]
    host.commit(["x"])
    ids = [[page for page, _ in used] for used in pages]

    host.lease(1, [*range(5), "x", *range(5, 8)], 0, 2)
    leased = [run.tolist() for run in host.end.leased[1].host_page_ids]
    assert leased == [ids[0][:5], ids[1][2:5]]
    assert [run.tolist() for run in host.end.leased[1].generations] == [[1] * 5, [1] * 3]
    assert host.core._index.num_readers == 8

    host.lease(2, [*range(4), "x", 4], 0, 5)
    assert [run.tolist() for run in host.end.leased[2].host_page_ids] == [
        [*ids[0][:4], host.core._index.find(0, make_key("x")), ids[0][4]],
        ids[1][4:5],
    ], "a page before a group's start may be missing there"

    host.lease(3, ["x", 0], 1, 0)
    assert [run.tolist() for run in host.end.leased[3].host_page_ids] == [[], []]
    host.release(1, 2, 3)
    assert host.core._index.num_readers == 0


def test_lease_unstages_the_runs_of_all_groups() -> None:
    host = with_two_groups()
    for group in (0, 1):
        host.store(range(4), group=group)
    host.lookup("r", range(4))
    host.answer_all()
    assert host.stat("pages_staged") == 8
    host.lease(1, range(4), 0, 2)
    assert host.stat("pages_staged") == 2
    host.cancel("r")
    assert host.stat("pages_staged") == 0


def test_new_pages_of_each_group_are_written_and_repaired_under_their_own_names() -> None:
    host = with_two_groups(STORAGE)
    host.commit(range(3))
    host.commit(range(2), group=1)
    host.answer_all()
    assert [set(objects) for objects in host.objects_of] == [
        {make_key(name) for name in range(3)},
        {make_key(name) for name in range(2)},
    ]
    host.lose_storage()
    host.objects_of[1].clear()
    host.attach_storage(51)
    host.tick_while_due()
    host.answer_all()
    host.tick_while_due()
    host.answer_all()
    assert set(host.objects_of[1]) == {make_key(name) for name in range(2)}
    assert host.stat("l3_pages_lacking") == 2


@pytest.mark.parametrize("num_groups", [1, 3])
def test_message_about_other_groups_than_l2_has_is_an_accounting_error(num_groups: int) -> None:
    host = with_two_groups(None)
    numbers = (0,) * num_groups
    with pytest.raises(AccountingError, match="L2 has 2"):
        host.say(Lookup(lookup_id=LookupId(1), keys=make_keys([1]), num_l1_pages=numbers))
    with pytest.raises(AccountingError, match="L2 has 2"):
        host.say(LeasePages(lease_id=LeaseId(1), keys=make_keys([1]), starts=numbers))
