"""Any order of requests, evictions and flushes, against a dict of chains and plain sets of pages."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raydix.runtime.cache.eviction import EVICTION_POLICIES
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.cache.radix_tree import Segment, Victim
from raydix.runtime.messages.host import split_keys
from tests.runtime.cache.model_radix_tree import Cache, PrefixModel, Request

IDENTITIES = (root_key(), root_key(cache_salt="tenant"))
SYMBOLS = st.lists(st.integers(0, 2), max_size=7)
"""One symbol per page: few enough that prompts share, extend and diverge all the time."""


class TreeMachine(RuleBasedStateMachine):
    """The tree and its pool agree with the model after every step, and no page is lost."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        num_groups=st.integers(1, 2),
    )
    def build(self, page_size: int, eviction: str, num_groups: int) -> None:
        self.cache = Cache(page_size=page_size, num_pages=600, eviction=eviction, num_groups=num_groups)
        self.model = PrefixModel(page_size)
        self.running: list[Request] = []

    def tokens_of(self, symbols: Sequence[int], num_partial: int = 0) -> list[int]:
        """Pages that differ in their last token alone, then part of a page."""
        size = self.cache.page_size
        page_tokens = [token for symbol in symbols for token in [9] * (size - 1) + [symbol]]
        return page_tokens + [9] * min(num_partial, size - 1)

    @rule(symbols=SYMBOLS, num_partial=st.integers(0, 15), identity=st.sampled_from(IDENTITIES))
    def match(self, symbols: list[int], num_partial: int, identity: bytes) -> None:
        tokens = self.tokens_of(symbols, num_partial)
        match = self.cache.match(tokens, identity)
        assert match.page_ids[0].tolist() == self.model.match(identity, tokens)
        cached = pack_tokens(tokens[: match.num_pages * self.cache.page_size])
        assert match.last_key == split_keys(identity + extend_keys(identity, cached, self.cache.page_size))[-1]

    @precondition(lambda self: len(self.running) < 6)
    @rule(symbols=SYMBOLS, num_partial=st.integers(0, 15), identity=st.sampled_from(IDENTITIES))
    def start(self, symbols: list[int], num_partial: int, identity: bytes) -> None:
        request = self.cache.start(self.tokens_of(symbols, num_partial), identity)
        self.running.append(request)
        self.model.locks.append((identity, tuple(request.tokens)))

    @precondition(lambda self: self.running and min(pool.num_free for pool in self.cache.pools) >= 8)
    @rule(
        data=st.data(),
        symbols=SYMBOLS,
        num_partial=st.integers(0, 15),
        segment=st.sampled_from(Segment),
        priority=st.integers(-2, 2),
    )
    def extend(
        self, data: st.DataObject, symbols: list[int], num_partial: int, segment: Segment, priority: int
    ) -> None:
        index = data.draw(st.integers(0, len(self.running) - 1))
        request = self.running[index]
        num_before = len(request.tokens) // self.cache.page_size
        insertion = self.cache.extend(request, self.tokens_of(symbols, num_partial), segment=segment, priority=priority)
        chains = self.model.chains(request.identity, request.tokens)[num_before:]
        assert insertion.num_existing_pages == sum(chain in self.model.page_ids for chain in chains)
        for chain, page_id in zip(chains, insertion.page_ids[0].tolist(), strict=True):
            assert self.model.page_ids.setdefault(chain, page_id) == page_id
        assert request.lock.num_pages == num_before + len(chains)
        self.model.locks[index] = (request.identity, tuple(request.tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.running) - 1))
        self.cache.tree.unlock(self.running.pop(index).lock)
        self.model.locks.pop(index)

    @rule(symbols=SYMBOLS, identity=st.sampled_from(IDENTITIES))
    def touch(self, symbols: list[int], identity: bytes) -> None:
        match = self.cache.match(self.tokens_of(symbols), identity)
        self.cache.tree.touch(match, now_s=self.cache.tick())

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages: int) -> None:
        peeked = self.cache.tree.victims(num_pages)
        self.evicted(num_pages, self.cache.evict(num_pages), peeked)

    @rule(num_pages=st.integers(0, 12), num_removed=st.integers(0, 4))
    def remove(self, num_pages: int, num_removed: int) -> None:
        victims = self.cache.tree.victims(num_pages)[:num_removed]
        self.cache.tree.remove(victims)
        self.cache.release(victims)
        self.evicted(0, victims, victims)

    @rule()
    def flush(self) -> None:
        num_evictable = self.cache.tree.num_evictable_pages
        self.evicted(num_evictable, self.cache.flush(), None)
        assert self.cache.tree.num_evictable_pages == 0

    def evicted(self, num_wanted: int, victims: list[Victim], expected: list[Victim] | None) -> None:
        num_evictable = len(self.model.page_ids) - len(self.model.locked)
        page_ids = [page_id for victim in victims for page_id in victim.page_ids[0].tolist()]
        assert len(page_ids) >= min(num_wanted, num_evictable)
        assert expected is None or [victim.keys for victim in victims] == [victim.keys for victim in expected]
        keys = [key for victim in victims for key in split_keys(victim.keys)]
        by_page = {page_id: chain for chain, page_id in self.model.page_ids.items()}
        for page_id, key in zip(page_ids, keys, strict=True):
            identity, tokens = by_page[page_id]
            assert key == split_keys(extend_keys(identity, pack_tokens(tokens), self.cache.page_size))[-1]
        self.model.evict(page_ids)

    @invariant()
    def owners_agree_with_the_model(self) -> None:
        self.cache.check()
        tree = self.cache.tree
        assert tree.num_cached_pages == len(self.model.page_ids)
        assert tree.num_locked_pages == len(self.model.locked)
        assert tree.num_locks == len(self.running)

    def teardown(self) -> None:
        for request in self.running:
            self.cache.tree.unlock(request.lock)
        self.cache.flush()
        assert self.cache.tree.num_nodes == 0
        assert all(pool.num_free == pool.num_pages for pool in self.cache.pools)


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None, derandomize=True)


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_the_tree_alone_decides_so_equal_histories_evict_equally(policy: str) -> None:
    def victims() -> list[bytes]:
        cache = Cache(page_size=1, eviction=policy)
        for number in range(60):
            cache.run([number % 3, number % 7, number % 5, number], priority=number % 4)
        return [victim.keys for victim in cache.evict(100)]

    assert victims() == victims()
