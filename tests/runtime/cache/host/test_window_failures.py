"""Where a chain with WINDOW groups ends when reads fail, come late or find no room."""

from dataclasses import replace

import pytest

from raydix.runtime.cache.host.events import RetireStorage, Tick
from raydix.runtime.messages.host import ObjectStatus
from tests.runtime.cache.host.windowed_host import (
    FULL,
    QUIET,
    WINDOW,
    answer_questions,
    reads,
    tiers,
    with_windows,
)


def test_failed_read_of_a_window_page_takes_away_the_ends_that_need_it() -> None:
    host = with_windows()
    host.store(range(10))
    host.store([2, 3, 6, 7], group=WINDOW)
    host.store([7], ObjectStatus.BAD_CHECKSUM, group=WINDOW)
    host.lookup("r", range(10))
    answer_questions(host)
    host.answer(next(i for i, o in enumerate(host.orders) if o.group == WINDOW))
    assert tiers(host) == ["????bbbb..", "..??..3b.."]
    assert reads(host, WINDOW) == [2, 3]
    host.answer_all()
    assert tiers(host) == ["3333bbbb..", "..33..3b.."]
    assert host.is_final("r")


def test_reads_of_full_pages_behind_the_next_best_end_are_cancelled() -> None:
    host = with_windows()
    host.store(range(12))
    host.store([2, 3, 10, 11], group=WINDOW)
    host.store([11], ObjectStatus.IO_ERROR, group=WINDOW)
    host.lookup("r", range(12))
    answer_questions(host)
    ordered = [order.batch_id for order in host.orders if order.group == FULL]
    host.answer(next(i for i, o in enumerate(host.orders) if o.group == WINDOW))
    assert host.cancelled == ordered[1:]
    host.answer_all()
    assert tiers(host) == ["3333!!!!!!!!", "..33......3!"]


def test_failed_full_page_falls_back_to_the_checkpoint_before_it() -> None:
    host = with_windows(apart=2)
    host.store(range(10))
    host.store([5], ObjectStatus.BAD_CHECKSUM)
    host.store([2, 3, 8, 9], group=WINDOW)
    host.lookup("r", range(10))
    host.answer_all()
    assert tiers(host) == ["33333bbbbb", "..33.bbbbb"]


def test_partial_arrival_ends_at_the_last_checkpoint_reached() -> None:
    host = with_windows(apart=4, storage=replace(QUIET, max_read_batches=1))
    host.store(range(12))
    host.store([2, 3, 6, 7, 10, 11], group=WINDOW)
    host.lookup("r", range(12))
    answer_questions(host)
    for _ in range(3):
        host.answer()
    assert tiers(host) == ["33333333????", "..33..33..??"]
    host.cancel("r")
    assert tiers(host)[FULL][:8] == "3" * 8
    assert tiers(host)[WINDOW][6:8] == "33"
    assert host.is_final("r")


def test_overdue_read_of_a_window_falls_back_like_a_failed_one() -> None:
    host = with_windows(storage=replace(QUIET, breaker_failures=9))
    host.store(range(6))
    host.commit([2, 3], group=WINDOW)
    host.store([4, 5], group=WINDOW)
    host.lookup("r", range(6))
    answer_questions(host)
    while any(order.group == FULL for order in host.orders):
        host.answer(next(i for i, o in enumerate(host.orders) if o.group == FULL))
    host.now_s += 100.0
    host.tell(Tick())
    assert tiers(host) == ["333333", "..22tt"]
    assert host.is_final("r")
    host.answer_all()


def test_l3_that_is_not_used_leaves_what_l2_has() -> None:
    host = with_windows(storage=None)
    host.commit(range(4))
    host.commit([0, 1], group=WINDOW)
    host.lookup("r", range(6))
    assert tiers(host) == ["2222..", "22...."]
    assert host.is_final("r")


@pytest.mark.parametrize("ends", ["lost", "retired"])
def test_end_of_storage_leaves_the_last_checkpoint_reached(ends: str) -> None:
    host = with_windows(apart=4, storage=replace(QUIET, max_read_batches=2))
    host.store(range(8))
    host.store([2, 3, 6, 7], group=WINDOW)
    host.lookup("r", range(8))
    answer_questions(host)
    host.answer()
    host.answer()
    if ends == "lost":
        host.lose_storage()
    else:
        host.tell(RetireStorage())
    assert host.is_final("r")
    assert (tiers(host)[FULL][:4], tiers(host)[WINDOW][2:4]) == ("3333", "33")
    assert host.stat("lookups") == 0


def test_full_stage_of_windows_falls_back_to_a_window_that_is_here() -> None:
    host = with_windows(None, 8, num_pages=96)
    assert host.core._staged.max_pages == (24, 24)
    for name in ("a", "b", "c"):
        others = [f"{name}{place}" for place in range(8)]
        for place in range(0, 8, 4):
            host.commit(others[place : place + 4])
        host.store(others[: 4 if name == "c" else 8], group=WINDOW)
        host.lookup(name, others)
        host.answer_all()
    assert host.core._staged.num_left(WINDOW) == 4

    host.commit(range(6), group=WINDOW)
    host.store(range(16))
    host.store(range(8, 16), group=WINDOW)
    host.lookup("r", range(16))
    host.answer_all()
    assert tiers(host) == ["333333nnnnnnnnnn", "222222......nnnn"]
    assert host.stat("pages_reading") == 0
    assert host.stat("pages_staged") == 2 * 8 + 4 + 6


def test_shared_reads_of_a_window_fail_for_all_who_wait() -> None:
    host = with_windows()
    host.store(range(6))
    host.store([2, 3, 4, 5], group=WINDOW)
    host.store([5], ObjectStatus.IO_ERROR, group=WINDOW)
    for request in "ab":
        host.lookup(request, range(6))
    host.answer_all()
    for request in "ab":
        assert tiers(host, request) == ["333333", "...33!"]
        assert host.is_final(request)
    assert host.stat("l3_reads_ok") == 6 + 2
