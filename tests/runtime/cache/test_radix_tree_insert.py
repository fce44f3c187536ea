"""The radix tree: how published pages enter it, and what becomes of those that it has already."""

import numpy as np
import pytest

from raydix.runtime.cache.page_key import extend_keys, pack_tokens
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.messages.arrays import int32_array
from tests.runtime.cache.model_radix_tree import Cache


def tokens(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_inserting_again_reports_all_as_present_and_frees_the_duplicates_once() -> None:
    cache = Cache()
    late = cache.start([1, 2, 3])
    first = cache.run([1, 2, 3])
    assert first.insertion is not None

    insertion = cache.extend(late, [1, 2, 3])

    assert insertion.num_existing_pages == 3
    assert insertion.page_ids[0].tolist() == first.insertion.page_ids[0].tolist()
    assert (cache.tree.num_cached_pages(0), late.num_duplicates) == (3, 3)
    cache.check()


def test_chunks_are_published_one_by_one_and_count_one_hit() -> None:
    cache = Cache(page_size=4)
    request = cache.start(tokens(1, 12))
    row: list[int] = []

    for first in (1, 5, 9):
        insertion = cache.extend(request, tokens(first, first + 3))
        row += insertion.page_ids[0].tolist()
        assert cache.match(tokens(1, 12)).page_ids[0].tolist() == row
        assert request.lock.num_pages == len(row)

    node = cache.match(tokens(1, 12)).node
    assert node is not None
    assert (node.num_hits, cache.tree.num_nodes) == (1, 1)
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_a_request_counts_one_hit_on_each_node_that_it_uses() -> None:
    cache = Cache()
    cache.run(tokens(1, 4))
    request = cache.start(tokens(1, 4))
    cache.extend(request, [5, 6])
    cache.extend(request, [7])

    first, second = cache.match(tokens(1, 4)).node, cache.match(tokens(1, 7)).node

    assert first is not None
    assert second is not None
    assert (first.num_hits, second.num_hits, second.num_pages) == (2, 1, 3)
    cache.tree.unlock(request.lock, last_step=0)


def test_decode_grows_one_node() -> None:
    cache = Cache(page_size=4)
    request = cache.start(tokens(1, 8))
    cache.extend(request, tokens(1, 8))

    for step in range(20):
        cache.extend(request, [100 + step] * 4, segment=Segment.OUTPUT)

    assert cache.tree.num_nodes == 2
    assert cache.tree.num_cached_pages(0) == cache.tree.num_locked_pages(0) == 22
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_a_leaf_that_another_request_used_does_not_grow() -> None:
    cache = Cache()
    first = cache.start([1, 2])
    cache.extend(first, [1, 2])
    second = cache.start([1, 2])

    cache.extend(first, [3])

    assert cache.tree.num_nodes == 2
    assert second.lock.num_pages == 2
    cache.tree.unlock(second.lock, last_step=0)
    cache.tree.unlock(first.lock, last_step=0)
    cache.check()


def test_of_two_requests_that_compute_the_same_pages_the_first_copy_stays() -> None:
    cache = Cache(page_size=4)
    first, second = cache.start(tokens(1, 16)), cache.start(tokens(1, 16))
    kept: list[int] = []

    for chunk in (tokens(1, 8), tokens(9, 16)):
        kept += cache.extend(first, chunk).page_ids[0].tolist()
        insertion = cache.extend(second, chunk)
        assert insertion.page_ids[0].tolist() == kept[-2:]
        assert insertion.num_existing_pages == 2
        cache.check()

    assert second.num_duplicates == 4
    cache.tree.unlock(first.lock, last_step=0)
    assert cache.tree.num_locked_pages(0) == 4
    cache.tree.unlock(second.lock, last_step=0)
    assert cache.match(tokens(1, 16)).page_ids[0].tolist() == kept
    cache.check()


def test_a_span_that_is_partly_present_is_joined_to_it() -> None:
    cache = Cache()
    late = cache.start(tokens(1, 8))
    cache.run([1, 2, 3, 99])

    insertion = cache.extend(late, tokens(1, 8))

    assert insertion.num_existing_pages == 3
    assert late.lock.num_pages == 8
    assert cache.match(tokens(1, 8)).page_ids[0].tolist() == insertion.page_ids[0].tolist()
    assert late.lock.last_key == cache.match(tokens(1, 8)).last_key
    cache.check()


def test_the_output_is_evicted_before_the_prompt() -> None:
    cache = Cache(page_size=4)
    cache.run(tokens(1, 8), tokens(101, 108))

    cache.evict(2)

    assert cache.num_matched(tokens(1, 8) + tokens(101, 108)) == 8
    cache.check()


def test_every_group_has_its_own_pages() -> None:
    cache = Cache(page_size=2, reaches=(None, None))
    cache.allocate(cache.pools[1], 3)  # so that the groups' ids differ
    cache.run(tokens(1, 8))
    request = cache.start([*tokens(1, 4), 99, 99])
    cache.extend(request, [99, 99])

    match = cache.match([*tokens(1, 4), 99, 99])

    assert [ids.tolist() for ids in match.page_ids] == [[1, 2, 5], [4, 5, 8]]
    cache.tree.unlock(request.lock, last_step=0)
    victims = cache.flush()
    assert sorted(np.concatenate([victim.page_ids[1] for victim in victims]).tolist()) == [
        4,
        5,
        6,
        7,
        8,
    ]
    cache.tree.check()


def test_lengths_that_disagree_are_refused_before_anything_changes() -> None:
    cache = Cache(page_size=4)
    lock = cache.tree.lock(cache.match([]), 0, now_s=1.0)
    packed = pack_tokens(tokens(1, 8))
    keys = extend_keys(cache.identity, packed, 4)

    for page_ids, wrong_keys in [
        ((int32_array([1]),), keys),
        ((int32_array([1, 2]),), keys[:32]),
        ((), keys),
    ]:
        with pytest.raises(ValueError, match="expected 1 x 2"):
            cache.tree.insert(lock, packed, page_ids, wrong_keys, segment=Segment.PROMPT, now_s=1.0)
    assert cache.tree.num_nodes == 0
    cache.tree.check()
