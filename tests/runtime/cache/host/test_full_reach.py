"""How far full pages reach in L3 is told, though no window makes them usable."""

from dataclasses import replace

import pytest

from raydix.runtime.messages.host import ObjectStatus
from tests.runtime.cache.host.windowed_host import (
    FULL,
    QUIET,
    WINDOW,
    answer_questions,
    with_windows,
)


@pytest.mark.parametrize("last", [FULL, WINDOW])
def test_full_pages_of_l3_are_told_though_no_window_is_there(last: int) -> None:
    """The answers come in whichever order."""
    host = with_windows()
    host.store(range(6))
    host.store([7], group=WINDOW)
    host.lookup("r", range(8), num_l1_pages=(2, 0))
    host.answer(next(i for i, order in enumerate(host.orders) if order.group != last))
    host.answer()
    assert not host.orders
    assert host.is_final("r")
    assert host.end.progress["r"][-1].num_full_pages == 6


def test_of_full_pages_only_those_are_told_that_all_groups_are_known_to_have() -> None:
    host = with_windows(None, 2, None)
    host.commit(range(3))
    host.commit(range(2), group=2)
    host.store([3, 4, 5])
    host.store([2, 3, 4, 6, 7], group=2)
    host.lookup("r", range(8))
    assert host.end.progress["r"][-1].num_full_pages == 2
    host.answer_all()
    assert host.end.progress["r"][-1].num_full_pages == 5


def test_a_full_page_that_cannot_be_read_is_not_told_any_longer() -> None:
    host = with_windows()
    host.store(range(8))
    host.store([4], ObjectStatus.BAD_CHECKSUM)
    host.store([2, 3, 6, 7], group=WINDOW)
    host.lookup("r", range(8))
    answer_questions(host)
    assert host.end.progress["r"][-1].num_full_pages == 8
    host.answer_all()
    assert host.end.progress["r"][-1].num_full_pages == 4


def test_what_l3_was_not_asked_for_is_not_told() -> None:
    for storage in (None, replace(QUIET, min_tokens=1000)):
        host = with_windows(storage=storage)
        host.commit(range(5))
        host.lookup("r", range(8))
        assert host.is_final("r")
        assert host.end.progress["r"][-1].num_full_pages == 5
