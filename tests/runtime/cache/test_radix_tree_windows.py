"""The radix tree of a model with sliding windows: what a lock pins, and what is healed."""

import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.messages.arrays import Int32Array, int32_array
from tests.runtime.cache.model_radix_tree import Cache, Request
from tests.runtime.cache.window_cache import FULL, WINDOW, cache_of, counts, live, tokens, usable


def test_a_prefix_ends_only_where_its_window_is_whole() -> None:
    """The pages 6 to 9 of the window's group are left after six were evicted."""
    cache = cache_of()
    request = cache.start([])
    cache.extend(request, tokens(1, 10))
    cache.evict(0, 6)

    assert cache.match(tokens(1, 10)).num_pages == 10
    assert live(cache, tokens(1, 10)) == [6, 7, 8, 9]
    assert usable(cache, tokens(1, 10)) == 10
    assert usable(cache, tokens(1, 8)) == 0
    cache.check()


def test_every_prefix_of_a_chain_without_tombstones_is_usable() -> None:
    """Nothing was evicted, so each prefix ends behind a whole window."""
    cache = cache_of()
    cache.run(tokens(1, 10))

    assert [usable(cache, tokens(1, last)) for last in range(1, 11)] == list(range(1, 11))


def test_after_a_tombstone_a_prefix_needs_a_whole_window() -> None:
    """The pages 0 to 4 of the window's group are gone."""
    cache = cache_of()
    cache.run(tokens(1, 12))
    cache.evict(0, 5)  # the pages 0 to 4

    ends = [usable(cache, tokens(1, last)) for last in (5, 8, 9, 10)]

    assert live(cache, tokens(1, 12)) == list(range(5, 12))
    assert ends == [0, 0, 9, 10], "page 4 is missing: 5 to 8 are the first whole window"


def test_window_pages_of_an_inner_node_go_alone_and_those_of_a_leaf_with_it() -> None:
    """A leaf takes the pages of both groups with it."""
    cache = cache_of()
    cache.run(tokens(1, 10), tokens(11, 12))
    free = [pool.num_free for pool in cache.pools]

    [victim] = cache.evict(0, 6)

    assert not victim.is_removed
    assert [ids.tolist() for ids in victim.page_ids][FULL] == [0] * 6
    assert [pool.num_free for pool in cache.pools] == [free[FULL], free[WINDOW] + 6]
    assert cache.match(tokens(1, 12)).num_pages == 12

    [victim] = cache.evict(2, 0)
    assert victim.is_removed
    assert [pool.num_free for pool in cache.pools] == [free[FULL] + 2, free[WINDOW] + 8]
    cache.check()


def test_an_insertion_heals_tombstones_and_gives_back_the_duplicates() -> None:
    """The FULL pages are unlocked when the window's group gets its pages back."""
    cache = cache_of()
    cache.run(tokens(1, 10))
    cache.evict(0, 6)
    before = cache.match(tokens(1, 10)).page_ids

    request = cache.start([])
    insertion = cache.extend(request, tokens(1, 10))

    assert insertion.num_existing_pages == 10
    after = cache.match(tokens(1, 10)).page_ids
    assert after[FULL].tolist() == before[FULL].tolist()
    assert live(cache, tokens(1, 10)) == list(range(10))
    assert after[WINDOW][6:].tolist() == before[WINDOW][6:].tolist()
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def heal(cache: Cache, request: Request, start: int, window: Int32Array) -> list[list[int]]:
    """Give the tree pages of the WINDOW group; back to the pool with what it has already."""
    nothing = int32_array([0] * len(window))
    kept = cache.tree.heal(request.lock, start, (nothing, window))
    cache.pools[WINDOW].release(window[window != kept[WINDOW]], after_step=-1)
    return [ids.tolist() for ids in kept]


def test_a_loaded_window_heals_a_locked_prefix_and_is_pinned() -> None:
    """The FULL pages are locked when the window's group gets its pages back."""
    cache = cache_of()
    cache.run(tokens(1, 10))
    cache.evict(0, 9)  # page 9 is left
    request = cache.start(tokens(1, 10))
    full = cache.match(tokens(1, 10)).page_ids[FULL].tolist()
    assert counts(cache, WINDOW) == (1, 1)

    kept = heal(cache, request, 7, cache.allocate(cache.pools[WINDOW], 3))

    assert kept == [full[7:], cache.match(tokens(1, 10)).page_ids[WINDOW][7:].tolist()]
    assert counts(cache, FULL) == (10, 10)
    assert counts(cache, WINDOW) == (3, 3)
    cache.evict(0, 10)
    assert live(cache, tokens(1, 10)) == [7, 8, 9]
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_what_is_healed_in_several_nodes_is_pinned_as_far_as_the_window_goes() -> None:
    cache = cache_of(window=5)
    cache.run(tokens(1, 3), tokens(4, 6))
    cache.evict(0, 6)
    request = cache.start(tokens(1, 6))
    assert cache.tree.num_nodes == 2

    heal(cache, request, 0, cache.allocate(cache.pools[WINDOW], 6))

    assert live(cache, tokens(1, 6)) == list(range(6))
    assert counts(cache, WINDOW) == (6, 5)
    cache.check()


def test_pages_to_heal_with_reach_to_the_end_of_the_lock() -> None:
    cache = cache_of()
    request = cache.run(tokens(1, 6))
    request = cache.start(tokens(1, 6))
    for start, num_pages in ((3, 2), (3, 4), (7, 0), (-1, 7)):
        page_ids = int32_array([0] * num_pages)
        with pytest.raises(ValueError, match="to the end of a lock of 6 pages"):
            cache.tree.heal(request.lock, start, (page_ids, page_ids))

    cache.tree.unlock(request.lock, last_step=0)
    with pytest.raises(AccountingError, match="given back"):
        cache.tree.heal(request.lock, 6, (int32_array(()),) * 2)


@pytest.mark.parametrize(("window", "page_size", "num_pinned"), [(8, 4, 2), (9, 4, 3), (12, 4, 3)])
def test_a_lock_on_a_long_leaf_pins_one_window(
    window: int, page_size: int, num_pinned: int
) -> None:
    """The lock pins as many pages as hold the window, rounded up."""
    cache = cache_of(window, page_size=page_size)
    cache.run(tokens(1, 100))
    request = cache.start(tokens(1, 100))

    assert counts(cache, FULL) == (25, 25)
    assert counts(cache, WINDOW) == (25, num_pinned)
    assert cache.tree.num_nodes == 1, "no node is split where a window begins"

    cache.evict(25, 25)
    assert counts(cache, FULL) == (25, 25)
    assert counts(cache, WINDOW) == (num_pinned, num_pinned)
    cache.tree.unlock(request.lock, last_step=0)
    assert counts(cache, WINDOW) == (num_pinned, 0)
    cache.check()


def test_a_window_moves_with_the_lock_that_grows_its_leaf() -> None:
    cache = cache_of()
    request = cache.start([])
    for last in (6, 7, 8, 20):
        cache.extend(request, tokens(len(request.tokens) + 1, last))
        assert counts(cache, WINDOW) == (last, 4)
        cache.check()

    assert cache.tree.num_nodes == 1
    assert sum(victim.num_pages for victim in cache.evict(0, 20)) == 16
    assert live(cache, tokens(1, 20)) == [16, 17, 18, 19]
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_a_window_moves_out_of_a_prompt_into_its_output_page_by_page() -> None:
    cache = cache_of(window=3)
    request = cache.start([])
    cache.extend(request, tokens(1, 10))

    pinned = []
    for output in tokens(11, 14):
        cache.extend(request, [output], segment=Segment.OUTPUT)
        cache.evict(0, 100)
        pinned.append(live(cache, request.tokens))
        cache.check()

    assert pinned == [[8, 9, 10], [9, 10, 11], [10, 11, 12], [11, 12, 13]]
    cache.tree.unlock(request.lock, last_step=0)


def test_locks_that_end_at_several_places_of_a_chain_pin_a_window_each() -> None:
    cache = cache_of(window=2)
    cache.run(tokens(1, 20))
    requests = [cache.start(tokens(1, last)) for last in (20, 10, 15, 10)]

    cache.evict(0, 100)
    assert live(cache, tokens(1, 20)) == [8, 9, 13, 14, 18, 19]

    for request, left in zip(requests, ([8, 9, 13, 14], [8, 9, 13, 14], [8, 9], []), strict=True):
        cache.tree.unlock(request.lock, last_step=0)
        cache.check()
        cache.evict(0, 100)
        assert live(cache, tokens(1, 20)) == left


def test_windows_that_overlap_in_a_node_are_pinned_from_the_first_one_on() -> None:
    cache = cache_of(window=4)
    cache.run(tokens(1, 20))
    requests = [cache.start(tokens(1, last)) for last in (20, 17, 18)]

    pinned = []
    for request in (requests[1], requests[2], requests[0]):
        pinned.append(counts(cache, WINDOW)[1])
        cache.tree.unlock(request.lock, last_step=0)
        cache.check()

    assert pinned == [20 - 13, 20 - 14, 20 - 16]


def test_a_lock_of_part_of_a_match_ends_where_it_says() -> None:
    cache = cache_of()
    cache.run(tokens(1, 10))
    match = cache.match(tokens(1, 10))

    lock = cache.tree.lock(match, 6, now_s=cache.tick())
    assert (lock.num_pages, lock.last_key) == (6, cache.match(tokens(1, 6)).last_key)
    assert (counts(cache, FULL)[1], counts(cache, WINDOW)[1]) == (6, 4)
    nothing = cache.tree.lock(match, 0, now_s=cache.tick())
    assert (nothing.num_pages, nothing.last_key) == (0, cache.identity)
    with pytest.raises(ValueError, match="expected 0 to 10"):
        cache.tree.lock(match, 11, now_s=cache.tick())

    cache.tree.unlock(lock, last_step=0)
    cache.tree.unlock(nothing, last_step=0)
    cache.check()


def test_windows_of_two_widths_are_pinned_each_on_its_own() -> None:
    cache = Cache(reaches=(2, None, 5))
    cache.run(tokens(1, 9), tokens(10, 11))
    request = cache.start(tokens(1, 11))

    cache.evict(100, 0, 100)

    assert live(cache, tokens(1, 11), 0) == [9, 10]
    assert live(cache, tokens(1, 11), 2) == [6, 7, 8, 9, 10]
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_a_window_of_one_token_pins_the_last_page() -> None:
    cache = cache_of(window=1)
    request = cache.start([])
    cache.extend(request, tokens(1, 4))

    assert counts(cache, WINDOW) == (4, 1)
    cache.evict(0, 4)
    assert live(cache, tokens(1, 4)) == [3]
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_check_finds_pins_and_orders_that_disagree_with_the_tree() -> None:
    def damaged(what: str) -> Cache:
        cache = cache_of()
        cache.run(tokens(1, 20))
        request = cache.start(tokens(1, 6))
        windows = cache.tree._windows
        pages = windows.group(WINDOW)
        assert pages is not None
        node = request.lock.node
        assert node is not None
        match what:
            case "locks reach":
                del windows._lock_ends[node]
            case "or other numbers":
                del pages._shares[node]
            case "counted":
                pages.num_locked += 1
            case "wait to lose":
                pages._inner.popitem()
        return cache

    for what in ("locks reach", "or other numbers", "counted", "wait to lose"):
        with pytest.raises(AccountingError, match=what):
            damaged(what).tree.check()


def test_the_end_of_a_chain_that_a_lock_parts_from_it_goes_if_nothing_is_held_there() -> None:
    cache = Cache(reaches=(2,))
    request = cache.start([])
    cache.extend(request, tokens(1, 4))
    cache.extend(request, tokens(5, 6), num_behind=2)
    cache.tree.unlock(request.lock, last_step=0)
    assert cache.num_matched(tokens(1, 6)) == 6

    lock = cache.tree.lock(cache.match(tokens(1, 6)), 4, now_s=cache.tick())

    cache.check()
    assert cache.num_matched(tokens(1, 6)) == 4
    cache.tree.unlock(lock, last_step=0)
    cache.check()
    assert live(cache, tokens(1, 6), 0) == [0, 1, 2, 3]
