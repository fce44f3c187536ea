"""A flush of L1 goes a few nodes at a time: what is used meanwhile stays, all else goes."""

import random

import pytest

from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.model_radix_tree import Cache

POLICIES = list(EvictionPolicy)
STEP = 4


def forked(policy: EvictionPolicy, reaches: tuple[int | None, ...] = (None,)) -> Cache:
    """Chains that part again and again, of ten to twenty pages."""
    cache = Cache(eviction=policy, reaches=reaches)
    draw = random.Random(0)
    for _ in range(40):
        cache.run([draw.randrange(2) for _ in range(draw.randrange(10, 20))])
    return cache


def go_on(cache: Cache, walk: FlushWalk) -> int:
    """One piece; returns how many nodes went."""
    victims = cache.tree.flush_some(walk, STEP)
    cache.release(victims)
    cache.check()
    return len(victims)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reaches", [(None,), (None, 3), (2,)])
def test_all_goes_some_nodes_at_a_time(
    policy: EvictionPolicy, reaches: tuple[int | None, ...]
) -> None:
    cache = forked(policy, reaches)
    walk = FlushWalk(used_until_s=cache.now_s)
    most = 0
    while not walk.is_done:
        most = max(most, go_on(cache, walk))
    assert cache.tree.num_nodes == 0
    # A piece of windows may leave a node, and those above it, hollow.
    assert most <= STEP or None not in reaches


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_used_or_published_meanwhile_stays_and_all_else_goes(
    policy: EvictionPolicy,
) -> None:
    cache = forked(policy)
    cache.run([7, 8, 9, 10])
    walk = FlushWalk(used_until_s=cache.now_s)
    go_on(cache, walk)

    cache.run([5] * 6)
    used = cache.start([7, 8, 9, 10])
    num_used = used.lock.num_pages
    cache.tree.unlock(used.lock, last_step=0)
    while not walk.is_done:
        go_on(cache, walk)
        cache.run([6, len(cache.tree.match(cache.identity, b"").page_ids)])

    assert cache.num_matched([5] * 6) == 6
    assert cache.num_matched([7, 8, 9, 10]) == num_used
    assert cache.num_matched([6, 1]) == 2
    for first in (0, 1):
        assert cache.num_matched([first]) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_request_holds_stays(policy: EvictionPolicy) -> None:
    cache = forked(policy)
    cache.run([7, 8, 9, 10])
    held = cache.start([7, 8, 9])
    walk = FlushWalk(used_until_s=cache.now_s)
    while not walk.is_done:
        go_on(cache, walk)
    assert cache.num_matched([7, 8, 9, 10]) == 3
    cache.tree.unlock(held.lock, last_step=0)
    cache.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_evictions_in_between_leave_nothing_behind(policy: EvictionPolicy) -> None:
    cache = forked(policy)
    walk = FlushWalk(used_until_s=cache.now_s)
    while not walk.is_done:
        go_on(cache, walk)
        cache.evict(1)
    assert cache.tree.num_nodes == 0
