"""The device is told of each change of a block table, once, in every KV group."""

from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.scheduler.request.block_table import BlockTable


def pages(*groups: list[int]) -> PageIds:
    return tuple(map(int32_array, groups))


def as_lists(page_ids: PageIds) -> list[list[int]]:
    return [ids.tolist() for ids in page_ids]


def test_the_device_is_told_of_what_is_new() -> None:
    table = BlockTable(pages([1, 2], [5, 6]))
    assert table.take_unsent() == (0, [[1, 2], [5, 6]])
    assert not table.has_unsent

    table.extend(pages([3], [7]))
    assert table.take_unsent() == (2, [[3], [7]])


def test_the_device_is_told_of_pages_that_were_replaced_and_of_those_behind_them() -> None:
    table = BlockTable(pages([1, 2, 3, 4], [5, 6, 7, 8]))
    table.take_unsent()
    table.replace(1, pages([17, 18], [6, 9]))

    assert as_lists(table.pages(0)) == [[1, 17, 18, 4], [5, 6, 9, 8]]
    assert table.take_unsent() == (1, [[17, 18, 4], [6, 9, 8]])


def test_a_table_that_is_cut_gives_the_other_pages_back() -> None:
    table = BlockTable(pages([1, 2, 3], [4, 5, 6]))
    table.take_unsent()

    assert as_lists(table.cut(1)) == [[2, 3], [5, 6]]
    assert len(table) == 1
    assert not table.has_unsent

    table.extend(pages([9], [8]))
    assert table.take_unsent() == (1, [[9], [8]])


def test_a_request_that_does_not_run_has_no_pages() -> None:
    table = BlockTable(())

    assert len(table) == 0
    assert not table.has_unsent


def test_pages_behind_the_window_of_a_group_are_left_once() -> None:
    table = BlockTable(pages([1, 2, 3, 4], [5, 6, 7, 8]))
    table.take_unsent()

    assert as_lists(table.leave([0, 2])) == [[], [5, 6]]
    assert as_lists(table.leave([0, 1])) == [[], []]
    assert as_lists(table.leave([0, 3])) == [[], [7]]
    assert as_lists(table.pages(0)) == [[1, 2, 3, 4], [0, 0, 0, 8]]
    assert table.num_held_from(0) == (4, 1)
    assert not table.has_unsent, "no row reads what the device still knows there"


def test_pages_at_single_places() -> None:
    table = BlockTable(pages([1, 2, 3, 4], [5, 6, 7, 8]))
    assert as_lists(table.at(((), (1, 3)))) == [[], [6, 8]]
