"""The last step that may name an evicted page."""

from tests.runtime.cache.model_radix_tree import Cache


def last_steps(cache: Cache, num_pages: list[int]) -> list[tuple[int, int]]:
    """The number of pages of each victim, and the last step that may name them."""
    return [(victim.num_pages, victim.last_step) for victim in cache.tree.evict(num_pages)]


def test_the_latest_of_those_who_held_a_page_counts() -> None:
    cache = Cache()
    first = cache.start([])
    cache.extend(first, [1, 2, 3])
    second = cache.start([1, 2, 3])
    cache.tree.unlock(second.lock, last_step=7)
    cache.tree.unlock(first.lock, last_step=4)
    assert last_steps(cache, [3]) == [(3, 7)]


def test_both_parts_of_a_run_remember_it() -> None:
    cache = Cache()
    cache.tree.unlock(cache.start([]).lock, last_step=9)
    first = cache.start([])
    cache.extend(first, [1, 2, 3])
    cache.tree.unlock(first.lock, last_step=5)

    second = cache.start([1, 2])
    cache.extend(second, [8])
    cache.tree.unlock(second.lock, last_step=6)

    assert last_steps(cache, [1]) == [(1, 5)]
    assert last_steps(cache, [3]) == [(1, 6), (2, 6)]


def test_a_window_leaves_behind_only_what_no_step_on_its_way_looks_back_on() -> None:
    cache = Cache(reaches=(None, 2))
    request = cache.start([])
    cache.extend(request, [1, 2, 3, 4, 5])
    other = cache.start([1, 2, 3, 4])
    assert last_steps(cache, [0, 1]) == [(1, 0)]

    cache.tree.unlock(other.lock, last_step=3)
    assert last_steps(cache, [0, 2]) == [(1, 3), (1, 3)]

    cache.tree.unlock(request.lock, last_step=5)
    assert last_steps(cache, [0, 2]) == [(1, 5), (1, 5)]
