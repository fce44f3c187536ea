"""The radix tree of a model with sliding windows: which pages go, and in which order."""

import pytest

from raydix.runtime.cache.page_key import extend_keys, pack_tokens
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import int32_array
from tests.runtime.cache.model_radix_tree import Cache
from tests.runtime.cache.window_cache import FULL, WINDOW, cache_of, counts, live, tokens, usable


def test_pages_in_no_window_go_before_those_at_a_chains_end() -> None:
    cache = cache_of()
    cache.run(tokens(1, 21))
    cache.run(tokens(101, 121))

    cache.evict(0, 2 * (21 - 4))

    for first in (1, 101):
        assert live(cache, tokens(first, first + 20)) == [17, 18, 19, 20]
        assert usable(cache, tokens(first, first + 20)) == 21
    cache.evict(0, 2)
    assert live(cache, tokens(1, 21)) == [19, 20], "the first in the policy's order"
    assert live(cache, tokens(101, 121)) == [17, 18, 19, 20]
    cache.check()


@pytest.mark.parametrize(
    ("eviction", "left"),
    [
        (EvictionPolicy.LRU, 1),
        (EvictionPolicy.MRU, 2),
        (EvictionPolicy.FIFO, 2),
        (EvictionPolicy.FILO, 1),
    ],
)
def test_windows_at_chain_ends_go_as_the_policy_says(eviction: EvictionPolicy, left: int) -> None:
    cache = cache_of(eviction=eviction)
    cache.run(tokens(101, 104))
    cache.run(tokens(201, 204))
    cache.run(tokens(101, 104))

    cache.evict(0, 4)

    assert usable(cache, tokens(100 * left + 1, 100 * left + 4)) == 4
    assert usable(cache, tokens(100 * (3 - left) + 1, 100 * (3 - left) + 4)) == 0


def test_a_shortage_of_window_pages_takes_no_other_page() -> None:
    cache = cache_of()
    cache.run(tokens(1, 20))

    victims = cache.evict(0, 100)

    assert counts(cache, FULL) == (20, 0)
    assert counts(cache, WINDOW) == (0, 0)
    assert not any(victim.is_removed for victim in victims)
    cache.check()


def test_what_leaves_with_a_leaf_counts_for_the_window_group() -> None:
    cache = cache_of()
    cache.run(tokens(1, 20))

    [victim] = cache.evict(5, 5)

    assert victim.num_pages == 5
    assert (counts(cache, FULL), counts(cache, WINDOW)) == ((15, 0), (15, 0))
    cache.check()


def all_window_cache() -> Cache:
    """All layers look three pages back."""
    return Cache(reaches=(3,))


def test_a_leaf_of_which_nothing_is_left_goes_with_those_above_it() -> None:
    cache = all_window_cache()
    cache.run(tokens(1, 5), tokens(6, 8))
    cache.run([*tokens(1, 5), 9])
    assert cache.tree.num_nodes == 3

    cache.evict(100)

    assert cache.tree.num_nodes == 0
    assert cache.match(tokens(1, 8)).num_pages == 0
    cache.check()


def test_a_running_request_keeps_the_path_to_its_window() -> None:
    cache = all_window_cache()
    request = cache.start([])
    cache.extend(request, tokens(1, 10))
    cache.extend(request, tokens(11, 14), segment=Segment.OUTPUT)

    victims = cache.evict(100)

    assert sum(victim.num_pages for victim in victims) == 11
    assert live(cache, tokens(1, 14), 0) == [11, 12, 13]
    cache.extend(request, tokens(15, 16), segment=Segment.OUTPUT)
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()
    victims = cache.evict(100)
    assert [victim.num_pages for victim in victims if victim.is_removed] == [6, 10]
    assert cache.tree.num_nodes == 0
    cache.check()


def test_a_locked_path_of_nothing_goes_when_its_lock_does() -> None:
    cache = all_window_cache()
    request = cache.start([])
    packed = pack_tokens(tokens(1, 4))
    cache.tree.insert(
        request.lock,
        packed,
        (int32_array([0] * 4),),
        extend_keys(cache.identity, packed, 1),
        segment=Segment.PROMPT,
        now_s=1.0,
    )
    assert (cache.tree.num_nodes, counts(cache, 0)) == (1, (0, 0))

    cache.tree.unlock(request.lock, last_step=0)

    assert cache.tree.num_nodes == 0
    cache.check()


def test_a_touched_window_goes_after_one_that_was_not() -> None:
    cache = cache_of()
    cache.run(tokens(101, 104))
    cache.run(tokens(201, 204))

    cache.tree.touch(cache.match(tokens(101, 104)), now_s=cache.tick())
    cache.evict(0, 4)

    assert usable(cache, tokens(101, 104)) == 4
    cache.check()


def test_the_use_of_a_chains_end_does_not_refresh_windows_far_above_it() -> None:
    cache = cache_of(window=2)
    cache.run([*tokens(1, 4), *tokens(51, 60)])
    cache.run(tokens(1, 14))
    cache.run(tokens(101, 104))
    cache.run(tokens(1, 14))

    num_inner = 2 + 8 + 8 + 2
    cache.evict(0, num_inner + 2 + 2)  # two windows more

    assert usable(cache, tokens(101, 104), window=2) == 4
    assert usable(cache, tokens(1, 4), window=2) < 4
    assert usable(cache, tokens(1, 14), window=2) == 14


def test_where_a_session_went_on_its_last_window_goes_before_those_of_others() -> None:
    cache = cache_of(window=2)
    cache.run(tokens(101, 110), tokens(111, 112))
    cache.run(tokens(201, 210), tokens(211, 212))
    cache.run(tokens(1, 10), tokens(11, 12))

    cache.run(tokens(1, 20), tokens(21, 22))
    num_inner = 8 + 8 + 18
    cache.evict(0, num_inner)

    assert usable(cache, tokens(1, 12), window=2) < 12
    assert usable(cache, tokens(1, 22), window=2) == 22
    for first in (101, 201):
        assert usable(cache, tokens(first, first + 9), window=2) == 10, "the prompt again"
        assert usable(cache, tokens(first, first + 11), window=2) == 12, "the next turn"
    cache.check()


def test_where_chains_part_the_window_is_kept() -> None:
    cache = cache_of(window=3)
    cache.run(tokens(1, 10))
    cache.run([*tokens(1, 10), *tokens(31, 40)])
    cache.run([*tokens(1, 10), *tokens(51, 60)])

    cache.evict(0, 6 + 6 + 6)

    assert usable(cache, tokens(1, 10), window=3) == 10
    cache.check()


def test_a_prompt_that_a_longer_one_begins_with_keeps_its_window_once_it_was_asked() -> None:
    cache = cache_of(window=3)
    cache.run(tokens(1, 20))
    cache.run(tokens(1, 10))

    num_inner = 20 - 3 - 3
    cache.evict(0, num_inner)

    assert usable(cache, tokens(1, 10), window=3) == 10
    assert usable(cache, tokens(1, 20), window=3) == 20
    cache.check()


def test_only_pages_that_no_window_needs_are_dropped_on_demand() -> None:
    cache = cache_of()
    cache.run(tokens(1, 20))
    lock = cache.tree.lock(cache.match(tokens(1, 20)), 20, now_s=0.0)
    other = cache.tree.lock(cache.match(tokens(1, 20)), 20, now_s=0.0)

    dropped = [page for page in range(20) if cache.tree.drop_inner(lock, WINDOW, page) is not None]

    assert dropped == list(range(16)), "the last four are the window before the end of the lock"
    assert live(cache, tokens(1, 20)) == [16, 17, 18, 19]
    assert cache.tree.drop_inner(lock, WINDOW, 3) is None, "it is gone already"
    assert cache.tree.drop_inner(lock, WINDOW, 20) is None, "it lies behind the node"
    for each in (lock, other):
        cache.tree.unlock(each, last_step=0)
    cache.tree.check()
