"""The device is told of each change of a block table, once."""

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.scheduler.block_table import BlockTable


def test_the_device_is_told_of_what_is_new() -> None:
    table = BlockTable([1, 2])
    assert table.take_unsent() == (0, [1, 2])
    assert not table.has_unsent

    table.extend(int32_array([3]))
    assert table.take_unsent() == (2, [3])


def test_the_device_is_told_of_pages_that_were_replaced_and_of_those_behind_them() -> None:
    table = BlockTable([1, 2, 3, 4])
    table.take_unsent()
    table.replace(1, int32_array([7, 8]))

    assert table.pages(0).tolist() == [1, 7, 8, 4]
    assert table.take_unsent() == (1, [7, 8, 4])


def test_a_table_that_is_cut_gives_the_other_pages_back() -> None:
    table = BlockTable([1, 2, 3])
    table.take_unsent()

    assert table.cut(1).tolist() == [2, 3]
    assert len(table) == 1
    assert not table.has_unsent

    table.extend(int32_array([9]))
    assert table.take_unsent() == (1, [9])
