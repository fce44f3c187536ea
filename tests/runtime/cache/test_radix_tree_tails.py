"""The radix tree: a leaf loses its last pages first, and no more than are needed."""

import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens
from raydix.runtime.cache.radix_node import Segment, take_back_hit
from tests.runtime.cache.model_radix_tree import Cache


def tokens(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_a_leaf_of_a_hundred_pages_that_gives_one_keeps_the_others() -> None:
    cache = Cache()
    cache.run(tokens(1, 100))

    [victim] = cache.evict(1)

    assert victim.num_pages == 1
    assert cache.num_matched(tokens(1, 100)) == 99
    cache.check()


def test_a_tail_names_the_pages_that_went_in_every_group() -> None:
    cache = Cache(page_size=2, reaches=(None, None))
    cache.allocate(cache.pools[1], 3)  # so that the groups' ids differ
    cache.run(tokens(1, 12))
    before = cache.match(tokens(1, 12))

    [victim] = cache.evict(2)

    keys = extend_keys(cache.identity, pack_tokens(tokens(1, 12)), 2)
    assert victim.keys == keys[-2 * KEY_BYTES :]
    assert [ids.tolist() for ids in victim.page_ids] == [
        ids[-2:].tolist() for ids in before.page_ids
    ]
    left = cache.match(tokens(1, 12))
    assert [ids.tolist() for ids in left.page_ids] == [ids[:-2].tolist() for ids in before.page_ids]
    cache.tree.check()


def test_eviction_goes_on_with_the_leaf_that_it_has_begun() -> None:
    cache = Cache()
    cache.run(tokens(1, 5))
    cache.run(tokens(11, 15))

    sizes = [[victim.num_pages for victim in cache.evict(2)] for _ in range(5)]

    assert sizes == [[2], [2], [1, 1], [2], [2]]
    assert cache.tree.num_nodes == 0
    cache.check()


def test_pages_out_of_one_leaf_together_are_those_out_of_it_one_by_one() -> None:
    def evicted(*steps: int) -> list[bytes]:
        cache = Cache()
        for last in (5, 9):
            cache.run([*tokens(1, 3), *tokens(last, last + 4)])
        victims = [victim for num_pages in steps for victim in cache.evict(num_pages)]
        keys = [
            victim.keys[at : at + KEY_BYTES]
            for victim in victims
            for at in range(0, len(victim.keys), KEY_BYTES)
        ]
        return sorted(keys)

    assert evicted(7) == evicted(*[1] * 7) == evicted(3, 4)


def test_a_tail_ends_where_a_lock_does() -> None:
    cache = Cache()
    cache.run(tokens(1, 10))
    request = cache.start(tokens(1, 4))

    freed = [victim.num_pages for _ in range(4) for victim in cache.evict(2)]

    assert freed == [2, 2, 2]
    assert cache.num_matched(tokens(1, 10)) == 4
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_an_output_loses_its_tail_before_its_prompt_loses_any() -> None:
    cache = Cache()
    cache.run(tokens(1, 4), tokens(101, 104))

    matched = []
    for _ in range(5):
        cache.evict(1)
        matched.append(cache.num_matched(tokens(1, 4) + tokens(101, 104)))

    assert matched == [7, 6, 5, 4, 3]
    cache.check()


def test_a_shortened_leaf_is_extended_as_any_other() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    cache.evict(3)

    request = cache.run(tokens(1, 8))

    assert request.match.num_pages == 5
    assert cache.num_matched(tokens(1, 8)) == 8
    cache.check()


def test_a_match_of_pages_that_went_is_refused_and_one_above_them_is_not() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    whole, part = cache.match(tokens(1, 8)), cache.match(tokens(1, 5))
    cache.evict(2)

    with pytest.raises(AccountingError, match="evicted"):
        cache.tree.lock(whole, whole.num_pages, now_s=cache.tick())
    with pytest.raises(AccountingError, match="evicted"):
        cache.tree.touch(whole, now_s=cache.tick())

    assert cache.tree.lock(part, part.num_pages, now_s=cache.tick()).num_pages == 5
    cache.check()


def test_a_match_whose_node_went_is_found_in_the_node_above() -> None:
    cache = Cache()
    cache.run(tokens(1, 8))
    match = cache.match(tokens(1, 3))
    cache.tree.unlock(cache.start(tokens(1, 5)).lock, last_step=0)
    cache.evict(3)  # all that is left of the node that the match names

    assert cache.tree.lock(match, match.num_pages, now_s=cache.tick()).num_pages == 3
    cache.check()


def test_a_match_stays_refused_when_others_have_taken_the_place_of_its_pages() -> None:
    cache = Cache()
    request = cache.start([])
    cache.extend(request, tokens(1, 8))
    take_back_hit(request.lock.node)
    cache.tree.unlock(request.lock, last_step=0)
    match = cache.match(tokens(1, 8))
    cache.evict(3)

    cache.run(tokens(1, 8))

    with pytest.raises(AccountingError, match="evicted"):
        cache.tree.lock(match, match.num_pages, now_s=cache.tick())
    cache.check()


def test_a_shortened_leaf_keeps_its_segment() -> None:
    cache = Cache()
    cache.run(tokens(1, 2), tokens(11, 16))
    cache.evict(2)

    leaf = cache.match(tokens(1, 2) + tokens(11, 16)).node

    assert leaf is not None
    assert (leaf.segment, leaf.num_pages) == (Segment.OUTPUT, 4)
