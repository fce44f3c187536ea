"""Hints move a session's own pages in the order of L1."""

import pytest

from raydix.ids import UserId
from raydix.runtime.cache import radix_retention
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.standing import Away, Kept, Over, Standing
from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.model_radix_tree import Cache

SHARED, OF_A, OF_B = [1, 1], [2, 2], [3, 3]
A, B = UserId(1), UserId(2)


def serve(cache: Cache, tokens: list[int], user: UserId) -> None:
    """Run a request of a user from start to end."""
    request = cache.start(tokens)
    cache.extend(request, tokens[len(request.tokens) :])
    node = request.lock.node
    assert node is not None
    cache.tree.unlock(request.lock, last_step=0)
    cache.tree.retention.end_use(node, user)


def two_sessions(policy: EvictionPolicy = EvictionPolicy.LRU) -> Cache:
    cache = Cache(eviction=policy)
    serve(cache, SHARED + OF_A, A)
    serve(cache, SHARED + OF_B, B)
    return cache


def first_gone(cache: Cache) -> str:
    cache.evict(1)
    cache.check()
    return (
        "B" if cache.match(SHARED + OF_A).num_pages > cache.match(SHARED + OF_B).num_pages else "A"
    )


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_ended_sessions_go_first_under_every_policy(policy: EvictionPolicy) -> None:
    for user, name in ((A, "A"), (B, "B")):
        cache = two_sessions(policy)
        assert cache.tree.retention.retain(user, Over()) == len(OF_A) // cache.page_size
        assert first_gone(cache) == name


def test_pages_that_two_sessions_have_used_stay_as_they_are() -> None:
    cache = two_sessions()
    for user in (A, B):
        cache.tree.retention.retain(user, Over())
    serve(cache, [9, 9], UserId(3))
    num_own = 2 * len(OF_A) // cache.page_size
    cache.evict(num_own)
    assert cache.match(SHARED).num_pages == len(SHARED) // cache.page_size


@pytest.mark.parametrize(
    ("standing", "now_s", "gone"),
    [(Kept(1e9), 0.0, "B"), (Away(1e6), 10.0, "A"), (Away(1e6), 1e6, "B")],
)
def test_hints_move_a_session_within_the_order(standing: Standing, now_s: float, gone: str) -> None:
    cache = two_sessions()
    cache.tree.retention.advance(10.0)
    cache.tree.retention.retain(A, standing)
    cache.tree.retention.advance(now_s)
    assert first_gone(cache) == gone


@pytest.mark.parametrize("policy", sorted(EvictionPolicy))
def test_what_is_kept_goes_last_under_every_policy(policy: EvictionPolicy) -> None:
    for user, other in ((A, "B"), (B, "A")):
        cache = two_sessions(policy)
        cache.tree.retention.retain(user, Kept(1e9))
        assert first_gone(cache) == other


def test_the_next_request_of_a_session_ends_its_hint() -> None:
    cache = two_sessions()
    cache.tree.retention.retain(B, Over())
    serve(cache, SHARED + OF_B, B)
    assert first_gone(cache) == "A"


def test_a_hint_spares_what_is_in_use() -> None:
    cache = two_sessions()
    lock = cache.start(SHARED + OF_A).lock
    assert cache.tree.retention.retain(A, Over()) == 0
    cache.tree.unlock(lock, last_step=0)
    cache.check()


def test_what_a_request_of_no_session_has_used_is_no_sessions_own() -> None:
    cache = Cache()
    request = cache.start(SHARED + OF_A)
    cache.extend(request, SHARED + OF_A)
    node = request.lock.node
    assert node is not None
    cache.tree.unlock(request.lock, last_step=0)
    cache.tree.retention.claim(node, B)
    serve(cache, SHARED + OF_A, A)
    assert cache.tree.retention.retain(B, Over()) == 0, "nobody can ask for it"
    assert cache.tree.retention.retain(A, Over()) == 0


def test_a_hint_to_evicted_pages_does_nothing() -> None:
    cache = two_sessions()
    cache.evict(100)
    assert cache.tree.retention.retain(A, Over()) == 0
    cache.check()


def test_a_session_that_is_forgotten_leaves_nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_retention, "_MAX_USERS", 1)
    cache = Cache()
    serve(cache, SHARED + OF_A, A)
    cache.tree.retention.retain(A, Kept(1e9))
    serve(cache, [9, 9], B)
    assert not cache.tree.retention.kept_users(0.0)
