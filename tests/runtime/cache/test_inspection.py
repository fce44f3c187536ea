"""Looking ahead: what goes next is inspected once, until it is used."""

from itertools import chain

from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.model_radix_tree import Cache
from tests.runtime.cache.test_eviction import A, B, C, hit, page_ids_of, touch


def inspected(cache: Cache, num_pages: int = 100) -> list[int]:
    """Inspect ahead; how many pages each node has that was not inspected before."""
    found = chain.from_iterable(cache.tree.inspect_ahead(num_pages))
    return [node.num_pages for node in found]


def test_an_inspected_leaf_that_comes_back_is_inspected_again() -> None:
    cache = Cache()
    cache.run(A)
    for use in (touch, hit):
        assert inspected(cache) == [2]
        assert inspected(cache) == []

        use(cache, A)
        cache.check()


def test_a_leaf_is_not_inspected_while_it_is_locked() -> None:
    cache = Cache()
    cache.run(A)
    inspected(cache)

    request = cache.start(A)

    assert inspected(cache) == []
    cache.tree.unlock(request.lock, last_step=0)
    assert inspected(cache) == [2]
    cache.check()


def test_a_lock_inside_an_inspected_leaf_leaves_its_rest_inspected() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4, 5])
    inspected(cache)

    request = cache.start([1, 2])

    assert inspected(cache) == []
    cache.check()
    cache.tree.unlock(request.lock, last_step=0)


def test_what_branches_share_is_inspected_with_the_last_of_them() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4, 7])
    cache.run([1, 2, 3, 4, 8, 9])
    assert [inspected(cache, num_pages) for num_pages in (1, 2, 7)] == [[1], [4, 2], []]

    cache.evict(1)
    cache.check()
    assert inspected(cache, 6) == []
    cache.evict(2)
    cache.check()
    assert inspected(cache, 4) == [], "it is a leaf with a place of its own now"


def test_what_becomes_a_leaf_behind_others_is_inspected_after_them() -> None:
    cache = Cache(eviction=EvictionPolicy.LFU)
    cache.run([1, 2, 3])
    cache.run([1, 2, 4])
    cache.run(B)
    assert inspected(cache, 4) == [1, 2, 1]

    cache.evict(2)
    cache.check()

    assert inspected(cache, 4) == [2, 2], "it was used twice, and goes after what was used once"


def test_a_new_branch_of_what_was_inspected_makes_others_go_first() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4, 7])
    cache.run([1, 2, 3, 4])
    cache.run(B)
    assert inspected(cache, 5) == [4, 1]

    request = cache.start([1, 2, 3, 4, 8])
    cache.check()
    assert inspected(cache, 3) == [2]
    cache.tree.unlock(request.lock, last_step=0)
    cache.check()


def test_evicted_pages_no_longer_count_as_inspected_ahead() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4, 5])
    inspected(cache)
    cache.run(C)

    for num_evicted, num_ahead, expected in ((2, 3, []), (1, 3, [2])):
        cache.evict(num_evicted)
        assert inspected(cache, num_ahead) == expected
        cache.check()


def test_looking_ahead_inspects_leaves_until_they_have_enough_pages_and_each_once() -> None:
    cache = Cache()
    for tokens in (A, B, C):
        cache.run(tokens)

    assert [len(list(cache.tree.inspect_ahead(num_pages))) for num_pages in (0, 1, 2, 3, 100)] == [
        0,
        1,
        0,
        1,
        1,
    ]
    cache.check()


def test_looking_ahead_finds_newcomers_that_overtake_what_was_inspected() -> None:
    cache = Cache(eviction=EvictionPolicy.MRU)
    cache.run(A)
    cache.run(B)
    assert len(list(cache.tree.inspect_ahead(3))) == 2
    cache.run(C)

    [[newcomer]] = cache.tree.inspect_ahead(3)

    assert list(cache.tree.inspect_ahead(3)) == []
    assert [victim.keys for victim in cache.tree.evict((newcomer.num_pages,))] == [newcomer.keys]


def test_looking_changes_nothing_but_what_was_inspected() -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6, [5, 5, 6]):
        cache.run(tokens)
    twin = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6, [5, 5, 6]):
        twin.run(tokens)

    list(cache.tree.inspect_ahead(5))
    list(cache.tree.unlocked())

    cache.check()
    assert page_ids_of(cache.evict(100)) == page_ids_of(twin.evict(100))
