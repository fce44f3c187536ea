"""Lists of items by use, in columns."""

import numpy as np

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


def test_many_items_move_as_they_would_one_after_another() -> None:
    random = np.random.default_rng(0)
    at_once, in_turn = LruLists(24, 2), LruLists(24, 2)
    for _ in range(300):
        group = int(random.integers(2))
        listed = list(in_turn.items(group))
        start = int(random.integers(len(listed) + 1))
        # Some follow each other in the list, in its order or against it, others do not.
        removed = listed[start : start + int(random.integers(8))][:: random.choice((1, -1))]
        if random.random() < 0.3:
            random.shuffle(removed)
        free = [item for item in range(24) if item not in in_turn or item in removed]
        added = random.permutation(free)[: random.integers(8)].tolist()

        at_once.remove_all(group, np.array(removed, dtype=np.int64))
        at_once.append_all(group, np.array(added, dtype=np.int64))
        for item in removed:
            in_turn.remove(group, item)
        for item in added:
            in_turn.append(group, item)

        for each in range(2):
            assert list(at_once.items(each)) == list(in_turn.items(each))
            assert at_once.length(each) == in_turn.length(each)
            assert at_once.oldest(each) == in_turn.oldest(each)
        mixed = random.permutation(24)
        assert at_once.listed(mixed).tolist() == [item for item in mixed if item in in_turn]


def test_lists_are_read_newest_first_in_turns_as_they_were_when_that_began() -> None:
    lists = LruLists(700, 3)
    for item in range(600):
        lists.append(0, item)
    for item in range(600, 610):
        lists.append(2, item)
    items = lists.newest_first()
    lists.remove(0, 599)
    lists.append(1, 599)
    expected = [*range(599, 343, -1), *range(609, 599, -1), *range(343, -1, -1)]
    assert list(items) == expected


def test_cleared_lists_are_empty_and_take_items_again() -> None:
    lists = LruLists(6, 2)
    for item in (3, 1):
        lists.append(item % 2, item)
    lists.clear()
    assert [list(lists.items(group)) for group in (0, 1)] == [[], []]
    assert [lists.length(group) for group in (0, 1)] == [0, 0]
    lists.append(0, 3)
    assert list(lists.items(0)) == [3]
