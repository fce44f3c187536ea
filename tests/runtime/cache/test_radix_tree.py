"""The radix tree: what it matches, keeps, shares and protects."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raydix.errors import AccountingError
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.cache.radix_node import chain_keys
from tests.runtime.cache.model_radix_tree import Cache


def tokens(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_an_empty_tree_matches_nothing() -> None:
    cache = Cache()

    for prompt in ([1, 2, 3], []):
        match = cache.match(prompt)
        assert (match.num_pages, match.last_key) == (0, cache.identity)
        assert [ids.tolist() for ids in match.page_ids] == [[]]
    assert cache.tree.num_nodes == 0
    cache.check()


def test_an_empty_prompt_matches_nothing_in_a_filled_tree() -> None:
    cache = Cache()
    cache.run([1, 2, 3])

    assert cache.match([]).num_pages == 0


@pytest.mark.parametrize("prompt", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5, 9], [1, 2, 7, 8]])
def test_the_keys_of_a_match_are_those_that_hashing_gives(prompt: list[int]) -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4, 5])
    cache.run([1, 2, 7])
    match = cache.match(prompt)

    hashed = extend_keys(cache.identity, pack_tokens(prompt), cache.tree.page_size)

    assert (
        chain_keys(match.node)[: match.num_pages * KEY_BYTES]
        == hashed[: match.num_pages * KEY_BYTES]
    )


def test_a_prompt_matches_its_cached_prefix() -> None:
    cache = Cache()
    request = cache.run([1, 2, 3])
    assert request.insertion is not None

    match = cache.match([1, 2, 3, 9])

    assert match.num_pages == 3
    assert match.page_ids[0].tolist() == request.insertion.page_ids[0].tolist()
    assert match.last_key == extend_keys(root_key(), pack_tokens([1, 2, 3]), 1)[-KEY_BYTES:]


def test_a_match_splits_nothing() -> None:
    cache = Cache()
    cache.run(tokens(1, 5))

    assert cache.match([1, 2, 3, 9]).num_pages == 3
    assert cache.tree.num_nodes == 1


def test_a_lock_inside_a_node_splits_it_and_keeps_all_pages() -> None:
    cache = Cache()
    cache.run(tokens(1, 5))

    request = cache.start([1, 2, 3, 9])

    assert (cache.tree.num_nodes, cache.tree.num_cached_pages(0)) == (2, 5)
    assert (cache.tree.num_locked_pages(0), cache.tree.num_evictable_pages(0)) == (3, 2)
    cache.check()
    cache.tree.unlock(request.lock, last_step=0)
    assert cache.tree.num_evictable_pages(0) == 5
    assert cache.num_matched(tokens(1, 5)) == 5
    cache.check()


def test_only_whole_pages_are_kept_and_matched() -> None:
    cache = Cache(page_size=4)
    cache.run(tokens(1, 10))

    assert cache.tree.num_cached_pages(0) == 2
    assert cache.num_matched(tokens(1, 7) + [99]) == 4
    assert cache.num_matched(tokens(1, 3)) == 0
    assert cache.num_matched([*tokens(1, 5), 99, *tokens(7, 10)]) == 4
    assert cache.num_matched(tokens(1, 10)) == 8
    cache.check()


def test_identities_share_nothing() -> None:
    cache = Cache()
    identities = [
        root_key(),
        root_key(cache_salt="s1"),
        root_key(cache_salt="s2"),
    ]
    prompt = tokens(1, 6)

    cached = [cache.run(prompt, identity=identity).match.num_pages for identity in identities]

    assert cached == [0] * len(identities)
    assert cache.tree.num_cached_pages(0) == 6 * len(identities)
    keys = {cache.match(prompt, identity).last_key for identity in identities}
    assert len(keys) == len(identities)
    cache.check()


def test_an_identity_without_pages_or_locks_leaves_nothing_behind() -> None:
    cache = Cache()
    for number in range(3):
        cache.run([1, 2], identity=root_key(cache_salt=str(number)))
    idle = cache.start([1, 2], identity=root_key(cache_salt="idle"))
    cache.check()

    cache.tree.unlock(idle.lock, last_step=0)
    cache.flush()

    assert not cache.tree.forest.roots
    cache.check()


@example(divergence=0, page_size=4)
@example(divergence=1, page_size=1)
@example(divergence=2, page_size=1)
@example(divergence=3, page_size=16)
@example(divergence=4096, page_size=16)
@given(divergence=st.integers(0, 4096), page_size=st.sampled_from([1, 4, 16, 64]))
def test_a_match_ends_at_the_page_of_the_first_difference(divergence: int, page_size: int) -> None:
    cache = Cache(page_size=page_size, num_pages=4200)
    rng = np.random.default_rng(divergence)
    prompt = rng.integers(0, 2**31 - 2, size=4200).tolist()
    cache.run(prompt)
    other = [*prompt[:divergence], prompt[divergence] + 1, *prompt[divergence + 1 :]]

    assert cache.num_matched(other) == divergence // page_size * page_size
    assert cache.num_matched(prompt[:divergence]) == divergence // page_size * page_size


def test_a_locked_prefix_survives_eviction() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    request = cache.start(tokens(1, 8))

    assert cache.evict(100) == []
    assert list(cache.tree.inspect_ahead(100)) == []
    assert list(cache.tree.unlocked()) == []
    assert (
        cache.tree.num_locked_pages(0) + cache.tree.num_evictable_pages(0)
        == cache.tree.num_cached_pages(0)
        == 8
    )
    cache.tree.unlock(request.lock, last_step=0)
    assert cache.tree.num_evictable_pages(0) == 8
    cache.check()


def test_what_lies_above_a_lock_survives_and_what_lies_below_goes() -> None:
    cache = Cache()
    cache.run(tokens(1, 12))
    request = cache.start(tokens(1, 6))

    cache.evict(100)

    assert cache.num_matched(tokens(1, 12)) == 6
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_a_second_unlock_is_an_error_and_changes_nothing() -> None:
    cache = Cache()
    cache.run(tokens(1, 4))
    first, second = cache.start(tokens(1, 4)), cache.start(tokens(1, 4))
    cache.tree.unlock(first.lock, last_step=0)

    with pytest.raises(AccountingError, match="given back"):
        cache.tree.unlock(first.lock, last_step=0)
    with pytest.raises(AccountingError, match="given back"):
        cache.extend(first, [5])

    assert (cache.tree.num_locks, cache.tree.num_locked_pages(0)) == (1, 4)
    cache.tree.unlock(second.lock, last_step=0)


def test_a_split_of_a_locked_path_leaves_both_parts_locked_until_one_unlock() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    outer = cache.start(tokens(1, 8))
    inner = cache.start([*tokens(1, 5), 99])

    assert cache.tree.num_locked_pages(0) == 8
    assert cache.tree.num_nodes == 2
    cache.tree.unlock(inner.lock, last_step=0)
    assert cache.tree.num_locked_pages(0) == 8
    cache.check()
    cache.tree.unlock(outer.lock, last_step=0)
    assert cache.tree.num_locked_pages(0) == 0
    cache.check()


def test_a_match_that_was_split_since_can_be_locked() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    matches = [cache.match(tokens(1, last)) for last in (5, 8, 3, 5)]

    first, *locks = [
        cache.tree.lock(match, match.num_pages, now_s=cache.tick()) for match in matches
    ]

    assert [lock.num_pages for lock in locks] == [8, 3, 5]
    assert cache.tree.num_nodes == 3
    cache.check()
    for lock in [*locks, first]:
        cache.tree.unlock(lock, last_step=0)
    assert cache.tree.num_locked_pages(0) == 0
    cache.check()


def test_a_match_that_was_evicted_since_is_refused() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    match = cache.match(tokens(1, 8))
    cache.evict(8)

    with pytest.raises(AccountingError, match="evicted"):
        cache.tree.lock(match, match.num_pages, now_s=cache.tick())
    with pytest.raises(AccountingError, match="evicted"):
        cache.tree.touch(match, now_s=cache.tick())
    assert cache.tree.num_locks == 0


def test_flush_returns_every_unlocked_page() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    cache.run(tokens(11, 14))
    request = cache.start(tokens(1, 2))

    victims = cache.flush()

    assert sum(victim.num_pages for victim in victims) == 10
    assert (cache.tree.num_cached_pages(0), cache.tree.num_nodes) == (2, 1)
    cache.tree.unlock(request.lock, last_step=0)
    cache.flush()
    assert (cache.tree.num_cached_pages(0), cache.tree.num_nodes, cache.pools[0].num_free) == (
        0,
        0,
        512,
    )
    cache.check()


def test_a_flushed_tree_can_be_filled_again() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    cache.flush()
    assert cache.num_matched(tokens(1, 8)) == 0

    cache.run(tokens(1, 8))

    assert cache.num_matched(tokens(1, 8)) == 8
    cache.check()


def test_victims_carry_the_keys_of_their_pages() -> None:
    cache = Cache(page_size=2)
    cache.run(tokens(1, 8))
    cache.run([*tokens(1, 4), 9, 9])

    found = {
        page_id: key
        for victim in cache.tree.unlocked()
        for page_id, key in zip(victim.page_ids[0].tolist(), split_keys(victim.keys), strict=True)
    }

    for prompt in (tokens(1, 8), [*tokens(1, 4), 9, 9]):
        keys = split_keys(extend_keys(cache.identity, pack_tokens(prompt), 2))
        assert [found[page_id] for page_id in cache.match(prompt).page_ids[0].tolist()] == keys


def test_results_cannot_change_the_tree() -> None:
    cache = Cache()
    cache.run(tokens(1, 4))

    with pytest.raises(ValueError, match="read-only"):
        cache.match(tokens(1, 4)).page_ids[0][0] = 77
    with pytest.raises(ValueError, match="read-only"):
        cache.evict(1)[0].page_ids[0][0] = 77
