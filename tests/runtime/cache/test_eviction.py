"""Which pages go first, under each policy, and at what cost."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction import EvictionOrder
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES, Evictable, eviction_key
from raydix.runtime.cache.page_key import root_key
from raydix.runtime.cache.radix_node import RadixNode, Victim, new_root
from raydix.runtime.cache.standing import Away, Idle, InUse
from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.model_radix_tree import Cache

A, B, C = [1, 1], [2, 2], [3, 3]


def order_of_eviction(cache: Cache) -> str:
    """Evict A, B and C; their names in the order in which they go."""
    names = {
        cache.match(tokens).page_ids[0][0]: name for name, tokens in (("A", A), ("B", B), ("C", C))
    }
    return "".join(names[victim.page_ids[0][0]] for victim in cache.evict(100))


def touch(cache: Cache, tokens: list[int]) -> None:
    cache.tree.touch(cache.match(tokens), now_s=cache.tick())


def hit(cache: Cache, tokens: list[int]) -> None:
    cache.tree.unlock(cache.start(tokens).lock, last_step=0)


@pytest.mark.parametrize(
    ("policy", "use", "expected"),
    [
        (EvictionPolicy.LRU, touch, "BCA"),
        (EvictionPolicy.LRU, hit, "BCA"),
        (EvictionPolicy.MRU, touch, "ACB"),
        (EvictionPolicy.FIFO, touch, "ABC"),
        (EvictionPolicy.FILO, touch, "CBA"),
        (EvictionPolicy.LFU, hit, "BCA"),
        (EvictionPolicy.LFU, touch, "BCA"),
        (EvictionPolicy.SLRU, hit, "BCA"),
        (EvictionPolicy.PRIORITY, touch, "BCA"),
        (EvictionPolicy.REUSE, touch, "BCA"),
        (EvictionPolicy.TLRU, touch, "BCA"),
    ],
)
def test_each_policy_orders_leaves(
    policy: EvictionPolicy, use: Callable[[Cache, list[int]], None], expected: str
) -> None:
    cache = Cache(eviction=policy)
    for tokens in (A, B, C):
        cache.run(tokens)
    use(cache, A)

    assert order_of_eviction(cache) == expected
    cache.check()


def test_what_comes_back_has_one_place_where_the_latest_use_goes_first() -> None:
    pages = new_root(root_key(), 1, 0.0)
    for standing in (Away(60.0), Away(60.0, at_least_s=5.0), InUse(3.0)):
        keys = {
            eviction_key(EVICTION_POLICIES[EvictionPolicy.MRU], pages, standing, now_s)
            for now_s in (3.0, 31.0, 59.0, 61.0, 700.0)
        }
        assert len(keys) == 1
    away, idle = (
        eviction_key(EVICTION_POLICIES[EvictionPolicy.MRU], pages, standing, 10.0)
        for standing in (Away(60.0), Idle(9.0))
    )
    assert away < idle


def test_lfu_counts_hits_before_time() -> None:
    cache = Cache(eviction=EvictionPolicy.LFU)
    for tokens in (A, B, C):
        cache.run(tokens)
    for tokens in (B, B, A):
        hit(cache, tokens)
    touch(cache, C)

    assert order_of_eviction(cache) == "CAB"


def test_slru_protects_from_the_second_hit_on() -> None:
    cache = Cache(eviction=EvictionPolicy.SLRU)
    for tokens in (A, B, C):
        cache.run(tokens)
    hit(cache, A)
    touch(cache, B)

    assert order_of_eviction(cache) == "CBA"


def converse(cache: Cache, first_token: int, num_turns: int) -> None:
    """Turns of four tokens, each behind all before it."""
    for turn in range(1, num_turns + 1):
        cache.run(list(range(first_token, first_token + 4 * turn)))


def num_left(cache: Cache, first_token: int) -> int:
    return cache.num_matched(list(range(first_token, first_token + 40)))


def test_tlru_takes_the_ends_of_all_conversations_before_the_rest_of_any() -> None:
    cache = Cache(eviction=EvictionPolicy.TLRU)
    converse(cache, 100, 3)
    converse(cache, 200, 3)
    converse(cache, 300, 1)
    # A request brings four pages on average: without so many the next one is soon computed.
    for expected in ([8, 12, 4], [8, 8, 4], [8, 8, 0], [4, 8, 0], [0, 8, 0], [0, 4, 0]):
        cache.evict(4)
        assert [num_left(cache, first) for first in (100, 200, 300)] == expected
        cache.check()


def test_tlru_counts_how_long_a_conversation_has_been_not_how_much_is_left() -> None:
    cache = Cache(eviction=EvictionPolicy.TLRU)
    converse(cache, 100, 4)
    cache.evict(4)
    converse(cache, 200, 1)
    # Twelve of its sixteen pages are needed, and none of the newcomer's four.
    cache.evict(4)
    assert (num_left(cache, 100), num_left(cache, 200)) == (12, 0)


def test_the_least_important_priority_goes_first() -> None:
    cache = Cache(eviction=EvictionPolicy.PRIORITY)
    for tokens, priority in ((A, 0), (B, 5), (C, -1)):
        cache.run(tokens, priority=priority)

    assert order_of_eviction(cache) == "BAC"


def test_a_prefix_is_as_important_as_its_most_important_request() -> None:
    cache = Cache(eviction=EvictionPolicy.PRIORITY)
    cache.run([1, 2, 3, 4, 5], priority=9)
    cache.run([1, 2, 3, 8], priority=-1)
    cache.run([7, 7], priority=2)

    prefix = cache.match([1, 2, 3]).node
    assert prefix is not None
    assert prefix.priority == -1
    suffix, bystander, urgent_suffix, last = cache.evict(100)
    assert [victim.num_pages for victim in (suffix, bystander, urgent_suffix, last)] == [2, 2, 1, 3]
    cache.check()


def test_equally_good_victims_go_in_the_order_in_which_they_became_evictable() -> None:
    cache = Cache(eviction=EvictionPolicy.FIFO)
    requests = [cache.start([]) for _ in (A, B, C)]
    for request, tokens in zip(requests, (A, B, C), strict=True):
        cache.now_s = 0.0
        cache.extend(request, tokens)
    for request in reversed(requests):
        cache.tree.unlock(request.lock, last_step=0)

    assert order_of_eviction(cache) == "CBA"


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_parent_goes_only_after_all_its_children(policy: EvictionPolicy) -> None:
    cache = Cache(eviction=policy)
    prefix = list(range(1, 9))
    cache.run(prefix)
    cache.run(prefix + [21])
    cache.run(prefix + [22])

    for _ in range(2):
        [victim] = cache.evict(1)
        assert victim.num_pages == 1
        assert cache.num_matched(prefix) == 8
    [parent] = cache.evict(8)
    assert parent.num_pages == 8
    assert cache.tree.num_nodes == 0
    cache.check()


@pytest.mark.parametrize("num_pages", [0, 1, 2, 3, 7, 12, 100])
def test_eviction_frees_what_was_asked_for_or_all_that_there_is(num_pages: int) -> None:
    cache = Cache()
    for tokens in ([1, 2, 3], [1, 2, 9, 9], [5] * 6):
        cache.run(tokens)
    cached_before = sorted(page_ids_of(cache.tree.unlocked()))

    freed = page_ids_of(cache.evict(num_pages))

    assert len(freed) == min(num_pages, 11)
    assert sorted(freed + page_ids_of(cache.tree.unlocked())) == cached_before
    assert cache.tree.num_cached_pages(0) == 11 - len(freed)
    cache.check()


def page_ids_of(victims: Iterable[Victim]) -> list[int]:
    return [page_id for victim in victims for page_id in victim.page_ids[0].tolist()]


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
    cache.tree.unlock(request.lock, last_step=0)

    prefix = cache.match([1, 1]).node
    assert prefix is not None
    assert prefix.last_use_s == cache.now_s
    assert [victim.num_pages for victim in cache.evict(100)] == [2, 1, 2]


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
    root = new_root(root_key(), 1, 0.0)
    nodes = []
    for _ in range(count):
        node = new_root(root_key(), 1, 0.0)
        node.parent = root
        node.last_use_s = float(rng.integers(count // 4 + 1))
        nodes.append(node)
    return nodes


def take_first(order: EvictionOrder) -> RadixNode | None:
    first = order.first()
    if first is not None:
        order.discard(first)
    return first


def test_the_order_computes_one_key_per_entry_and_none_per_victim() -> None:
    keys_computed = 0

    def counting_key(_: Evictable, used_s: float) -> float:
        nonlocal keys_computed
        keys_computed += 1
        return used_s

    order = EvictionOrder(counting_key)
    nodes = leaves(500)
    for node in nodes:
        order.add(node)

    taken = [take_first(order) for _ in nodes]

    assert keys_computed == 500
    assert order.first() is None
    uses = [node.last_use_s for node in taken if node is not None]
    assert uses == sorted(node.last_use_s for node in nodes)


def test_the_order_holds_under_any_mixture_of_adds_discards_and_inspections() -> None:
    rng = np.random.default_rng(11)
    order = EvictionOrder(EVICTION_POLICIES[EvictionPolicy.LRU])
    nodes = leaves(200)
    waiting: dict[RadixNode, tuple[float, int]] = {}
    inspected: set[RadixNode] = set()
    for serial in range(6000):
        node = nodes[int(rng.integers(len(nodes)))]
        draw = rng.random()
        if draw < 0.5:
            node.last_use_s = float(rng.integers(1000))
            order.add(node)
            waiting[node] = (node.last_use_s, serial)
            inspected.discard(node)
        elif draw < 0.6 and node in waiting:
            order.discard(node)
            del waiting[node]
        elif draw < 0.75:
            first = take_first(order)
            assert first == min(waiting, key=lambda node: waiting[node], default=None)
            waiting.pop(first, None)  # type: ignore[arg-type]
        else:
            others = [node for node in waiting if node not in inspected]
            found = order.inspect()
            first = min(others, key=lambda node: waiting[node], default=None)
            assert found == ([] if first is None else [first])
            inspected |= set(found)
        inspected &= set(waiting)
        if not serial % 50:
            order.check(set(waiting), nodes)


def test_unlocked_pages_come_heads_of_chains_first() -> None:
    cache = Cache()
    cache.run([1, 2, 3])
    cache.run([1, 2, 9])
    cache.run([1, 2, 9, 7])
    request = cache.start([1, 2])

    found = page_ids_of(cache.tree.unlocked())

    cached = cache.match([1, 2, 9, 7]).page_ids[0].tolist()
    assert [page_id for page_id in found if page_id in cached] == cached[2:]
    assert len(found) == 3
    cache.tree.unlock(request.lock, last_step=0)
    assert page_ids_of(cache.tree.unlocked())[:2] == cached[:2]


def test_check_finds_a_wrong_leaf_a_wrong_count_and_a_wrong_place() -> None:
    order = EvictionOrder(EVICTION_POLICIES[EvictionPolicy.LRU])
    nodes = leaves(9)
    for node in nodes:
        order.add(node)
    order.inspect()
    order.check(set(nodes), nodes)

    with pytest.raises(AccountingError, match="expected 8"):
        order.check(set(nodes[:8]), nodes)
    order.num_inspected_pages += 1
    with pytest.raises(AccountingError, match="counted"):
        order.check(set(nodes), nodes)
    nodes[3].eviction_key = 99.0
    with pytest.raises(AccountingError, match="disagrees"):
        order.check(set(nodes), nodes)


def test_every_policy_of_the_configuration_has_a_key() -> None:
    assert set(EVICTION_POLICIES) == set(EvictionPolicy)
