"""Which pages go first, under each policy, and at what cost."""

from collections.abc import Callable

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction import EVICTION_POLICIES, EvictionOrder
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.radix_node import RadixNode, new_root
from tests.runtime.cache.model_radix_tree import Cache

A, B, C = [1, 1], [2, 2], [3, 3]


def order_of_eviction(cache: Cache) -> str:
    """The names of A, B and C in the order in which they go."""
    names = {cache.match(tokens).page_ids[0][0]: name for name, tokens in (("A", A), ("B", B), ("C", C))}
    return "".join(names[victim.page_ids[0][0]] for victim in cache.tree.victims(100))


def touch(cache: Cache, tokens: list[int]) -> None:
    cache.tree.touch(cache.match(tokens), now_s=cache.tick())


def hit(cache: Cache, tokens: list[int]) -> None:
    cache.tree.unlock(cache.start(tokens).lock)


@pytest.mark.parametrize(
    ("policy", "use", "expected"),
    [
        ("lru", touch, "BCA"),
        ("lru", hit, "BCA"),
        ("mru", touch, "ACB"),
        ("fifo", touch, "ABC"),
        ("filo", touch, "CBA"),
        ("lfu", hit, "BCA"),
        ("lfu", touch, "BCA"),
        ("slru", hit, "BCA"),
        ("priority", touch, "BCA"),
    ],
)
def test_each_policy_orders_leaves(policy: str, use: Callable[[Cache, list[int]], None], expected: str) -> None:
    cache = Cache(eviction=policy)
    for tokens in (A, B, C):
        cache.run(tokens)
    use(cache, A)

    assert order_of_eviction(cache) == expected
    cache.check()


def test_lfu_counts_hits_before_time() -> None:
    cache = Cache(eviction="lfu")
    for tokens in (A, B, C):
        cache.run(tokens)
    for tokens in (B, B, A):
        hit(cache, tokens)
    touch(cache, C)

    assert order_of_eviction(cache) == "CAB"


def test_slru_protects_from_the_second_hit_on() -> None:
    cache = Cache(eviction="slru")
    for tokens in (A, B, C):
        cache.run(tokens)
    hit(cache, A)
    touch(cache, B)

    assert order_of_eviction(cache) == "CBA"


def test_the_least_important_priority_goes_first() -> None:
    cache = Cache(eviction="priority")
    for tokens, priority in ((A, 0), (B, 5), (C, -1)):
        cache.run(tokens, priority=priority)

    assert order_of_eviction(cache) == "BAC"


def test_a_prefix_is_as_important_as_its_most_important_request() -> None:
    cache = Cache(eviction="priority")
    cache.run([1, 2, 3, 4, 5], priority=9)
    cache.run([1, 2, 3, 8], priority=-1)
    cache.run([7, 7], priority=2)

    suffix, bystander, urgent_suffix, prefix = cache.tree.victims(100)

    assert suffix.num_pages == 2
    assert bystander.num_pages == 2
    assert urgent_suffix.num_pages == 1
    assert (prefix.num_pages, prefix.node.priority) == (3, -1)
    cache.check()


def test_equally_good_victims_go_in_the_order_in_which_they_became_evictable() -> None:
    cache = Cache(eviction="fifo")
    requests = [cache.start([]) for _ in (A, B, C)]
    for request, tokens in zip(requests, (A, B, C), strict=True):
        cache.now_s = 0.0
        cache.extend(request, tokens)
    for request in reversed(requests):
        cache.tree.unlock(request.lock)

    assert order_of_eviction(cache) == "CBA"


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_parent_goes_only_after_all_its_children(policy: str) -> None:
    cache = Cache(eviction=policy)
    prefix = list(range(1, 9))
    cache.run(prefix)
    cache.run(prefix + [21])
    cache.run(prefix + [22])

    assert [victim.num_pages for victim in cache.tree.victims(3)] == [1, 1, 8]
    first, second, parent = (cache.evict(1)[0] for _ in range(3))
    assert parent.num_pages == 8
    assert {first.num_pages, second.num_pages} == {1}
    assert cache.tree.num_nodes == 0
    cache.check()


@pytest.mark.parametrize("num_pages", [0, 1, 2, 3, 7, 12, 100])
def test_eviction_frees_what_was_asked_for_or_all_that_there_is(num_pages: int) -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6):
        cache.run(tokens)
    num_evictable = cache.tree.num_evictable_pages
    cached_before = sorted(page_id for victim in cache.tree.victims(100) for page_id in victim.page_ids[0].tolist())

    victims = cache.evict(num_pages)

    freed = [page_id for victim in victims for page_id in victim.page_ids[0].tolist()]
    left = [page_id for victim in cache.tree.victims(100) for page_id in victim.page_ids[0].tolist()]
    assert len(freed) >= min(num_pages, num_evictable)
    assert sorted(freed + left) == cached_before
    assert cache.tree.num_cached_pages == num_evictable - len(freed)
    cache.check()


def test_looking_at_victims_changes_nothing() -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6, [5, 5, 6]):
        cache.run(tokens)

    for num_pages in (3, 1, 100, 100):
        cache.tree.victims(num_pages)
        cache.check()

    peeked = [victim.page_ids[0].tolist() for victim in cache.tree.victims(100)]
    assert [victim.page_ids[0].tolist() for victim in cache.evict(100)] == peeked


def test_victims_can_be_removed_in_their_order() -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6):
        cache.run(tokens)
    victims = cache.tree.victims(100)

    cache.tree.remove(victims[:2])
    cache.tree.check()
    cache.tree.remove(victims[2:])

    assert cache.tree.num_nodes == 0
    cache.tree.check()


def test_victims_are_removed_wholly_or_not_at_all() -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6):
        cache.run(tokens)
    victims = cache.tree.victims(100)
    parent_first = sorted(victims, key=lambda victim: victim.node.start)

    for wrong in (parent_first, [victims[0], victims[0]]):
        with pytest.raises(AccountingError, match="cannot be removed"):
            cache.tree.remove(wrong)
    request = cache.start([5] * 6)
    with pytest.raises(AccountingError, match="1 locks"):
        cache.tree.remove(victims)
    cache.tree.unlock(request.lock)
    cache.check()
    assert cache.tree.num_cached_pages == 11

    cache.evict(100)
    with pytest.raises(AccountingError, match="no longer"):
        cache.tree.remove(victims[:1])


def test_a_victim_that_was_split_since_cannot_be_removed() -> None:
    cache = Cache()
    cache.run([5] * 6)
    victims = cache.tree.victims(1)
    cache.tree.unlock(cache.start([5, 5]).lock)

    with pytest.raises(AccountingError, match="6 pages then, 4 now"):
        cache.tree.remove(victims)
    cache.check()


def test_a_touch_of_a_path_keeps_prefixes_younger_than_their_suffixes() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4])
    cache.run([1, 2, 9])
    cache.run(B)
    touch(cache, [1, 2, 3])

    touched = cache.match([1, 2, 3, 4]).node
    untouched = cache.match([1, 2, 9]).node

    assert touched is not None
    assert touched.parent is not None
    assert untouched is not None
    assert touched.last_use_s == touched.parent.last_use_s == cache.now_s > untouched.last_use_s
    assert cache.tree.num_nodes == 4
    touch(cache, [77])
    cache.check()


def test_publishing_a_page_uses_the_whole_prefix() -> None:
    cache = Cache()
    cache.run([1, 1])
    request = cache.start([1, 1])
    cache.run([2, 2])
    cache.extend(request, [9])
    cache.tree.unlock(request.lock)

    assert [victim.num_pages for victim in cache.tree.victims(100)] == [2, 1, 2]
    prefix = cache.match([1, 1]).node
    assert prefix is not None
    assert prefix.last_use_s == cache.now_s


def test_a_split_leaves_both_parts_their_hits() -> None:
    cache = Cache()
    cache.run([1, 2, 3, 4])
    hit(cache, [1, 2, 3, 4])

    hit(cache, [1, 2])

    upper, lower = cache.match([1, 2]).node, cache.match([1, 2, 3, 4]).node
    assert upper is not None
    assert lower is not None
    assert (upper.num_hits, lower.num_hits) == (3, 2)


def leaves(count: int) -> list[RadixNode]:
    rng = np.random.default_rng(7)
    nodes = []
    for _ in range(count):
        node = new_root(root_key(), 1, 0.0)
        node.last_use_s = float(rng.integers(count // 4 + 1))
        nodes.append(node)
    return nodes


def test_the_order_computes_one_key_per_entry_and_none_per_victim() -> None:
    keys_computed = 0

    def counting_key(node: RadixNode) -> float:
        nonlocal keys_computed
        keys_computed += 1
        return node.last_use_s

    order = EvictionOrder(counting_key)
    nodes = leaves(500)
    for node in nodes:
        order.add(node)

    popped = [order.pop() for _ in nodes]

    assert keys_computed == 500
    assert order.pop() is None
    uses = [entry[2].last_use_s for entry in popped if entry is not None]
    assert uses == sorted(node.last_use_s for node in nodes)


def test_outdated_entries_do_not_pile_up() -> None:
    order = EvictionOrder(EVICTION_POLICIES["lru"])
    nodes = leaves(50)
    for round_number in range(100):
        for node in nodes:
            node.last_use_s += round_number
            order.add(node)
        order.check(50)
    for node in nodes[:49]:
        order.discard(node)
    order.check(1)
    assert order.pop() is not None
    order.compact()
    order.check(0)


def test_outdated_entries_behind_the_live_ones_go_with_them() -> None:
    order = EvictionOrder(EVICTION_POLICIES["lru"])
    nodes = leaves(100)
    for node in nodes:
        node.last_use_s = 2.0
        order.add(node)
    first = order.pop()
    assert first is not None
    order.restore(first)
    for node in nodes:
        node.last_use_s = 1.0
        order.add(node)

    for num_left in range(99, -1, -1):
        assert order.pop() is not None
        order.compact()
        order.check(num_left)


def test_the_order_holds_under_any_mixture_of_adds_discards_and_pops() -> None:
    rng = np.random.default_rng(11)
    order = EvictionOrder(EVICTION_POLICIES["lru"])
    nodes = leaves(200)
    waiting: dict[RadixNode, tuple[float, int]] = {}
    for serial in range(6000):
        node = nodes[int(rng.integers(len(nodes)))]
        draw = rng.random()
        if draw < 0.5:
            node.last_use_s = float(rng.integers(1000))
            order.add(node)
            waiting[node] = (node.last_use_s, serial)
        elif draw < 0.6 and node in waiting:
            order.discard(node)
            del waiting[node]
        elif draw < 0.9:
            entry = order.pop()
            if entry is None:
                assert not waiting
            elif draw < 0.7:
                assert waiting[entry[2]] == min(waiting.values())
                order.restore(entry)
            else:
                assert waiting.pop(entry[2]) <= min(waiting.values(), default=(1e9, 0))
        if not serial % 50:
            order.compact()
            order.check(len(waiting))


def test_check_finds_a_wrong_count_and_a_wrong_order() -> None:
    order = EvictionOrder(EVICTION_POLICIES["lru"])
    for node in leaves(9):
        order.add(node)
    with pytest.raises(AccountingError, match="expected 8"):
        order.check(8)
    order.pop()
    order._run.reverse()
    with pytest.raises(AccountingError, match="not sorted"):
        order.check(8)
