"""Lists of items by use, in columns."""

from raydix.runtime.cache.host.lru_lists import LruLists


def test_lists_keep_their_items_in_the_order_of_use() -> None:
    lists = LruLists(6, 2)
    for item in (3, 1, 5):
        lists.append(0, item)
    lists.append(1, 4)
    assert [list(lists.items(group)) for group in (0, 1)] == [[3, 1, 5], [4]]
    assert [lists.oldest(group) for group in (0, 1)] == [3, 4]

    lists.remove(0, 3)
    lists.append(0, 3)
    lists.remove(1, 4)
    assert [list(lists.items(group)) for group in (0, 1)] == [[1, 5, 3], []]
    assert [lists.length(group) for group in (0, 1)] == [3, 0]
    assert lists.oldest(1) is None
    assert 5 in lists
    assert 4 not in lists
