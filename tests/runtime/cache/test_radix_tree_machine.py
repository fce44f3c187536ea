"""Requests, evictions and flushes in any order, against a dict of chains and sets of pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.eviction import EVICTION_POLICIES
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_node import take_back_hit
from raydix.runtime.cache.radix_tree import Match, Segment, Victim
from tests.runtime.cache.model_radix_tree import Cache, Chain, EvictionModel, PrefixModel, Request

IDENTITIES = (root_key(), root_key(cache_salt="tenant"))


@dataclass(slots=True)
class Found:
    """A match, and which pages it was of."""

    symbols: Sequence[int]
    identity: PageKey
    match: Match
    serials: list[int | None]


def pages_of(page_ids: PageIds) -> list[list[int]]:
    """Page by page, the id in each group."""
    return np.stack(page_ids, axis=1).tolist()  # type: ignore[no-any-return]


class CheckedCache:
    """A cache that does everything twice, in the tree and in the model, and compares.

    Prompts are given as one symbol per page: pages that differ in their last token alone, then part
    of a page.
    """

    def __init__(
        self, *, page_size: int, eviction: str, reaches: tuple[int | None, ...] = (None,)
    ) -> None:
        self.cache = Cache(page_size=page_size, num_pages=300, eviction=eviction, reaches=reaches)
        self.tree = self.cache.tree
        self.model = PrefixModel(page_size, reaches)
        self.groups = range(len(reaches))
        self.order = EvictionModel(self.tree, eviction)
        self.running: list[Request] = []

    def tokens_of(self, symbols: Sequence[int], num_partial: int = 0) -> list[int]:
        size = self.cache.page_size
        page_tokens = [token for symbol in symbols for token in [9] * (size - 1) + [symbol]]
        return page_tokens + [9] * min(num_partial, size - 1)

    def match(self, symbols: Sequence[int], identity: PageKey, num_partial: int = 0) -> Found:
        tokens = self.tokens_of(symbols, num_partial)
        match = self.cache.match(tokens, identity)
        assert pages_of(match.page_ids) == self.model.match(identity, tokens)
        cached = tokens[: match.num_pages * self.cache.page_size]
        keys = identity + extend_keys(identity, pack_tokens(cached), self.cache.page_size)
        assert match.last_key == split_keys(keys)[-1]
        return Found(symbols, identity, match, self.serials(identity, cached))

    def serials(self, identity: PageKey, tokens: Sequence[int]) -> list[int | None]:
        return [self.model.serials.get(chain) for chain in self.model.chains(identity, tokens)]

    def start(self, found: Found, num_less: int = 0) -> None:
        """Lock a match, perhaps an earlier one, but for its last pages.

        It must be refused if what is locked has left the tree since.
        """
        match, identity = found.match, found.identity
        num_pages = max(0, match.num_pages - num_less)
        tokens = self.tokens_of(found.symbols[:num_pages])
        if self.serials(identity, tokens) != found.serials[:num_pages]:
            with pytest.raises(AccountingError, match="evicted"):
                self.tree.lock(match, num_pages, now_s=self.cache.tick())
            return
        lock = self.tree.lock(match, num_pages, now_s=self.cache.tick())
        self.running.append(Request(identity, tokens, lock, match))
        self.model.locks.append((identity, tuple(tokens)))

    def extend(
        self,
        index: int,
        symbols: Sequence[int],
        segment: Segment,
        priority: int,
        num_partial: int = 0,
        num_behind: int = 0,
    ) -> None:
        request = self.running[index]
        num_before = request.lock.num_pages
        tokens = self.tokens_of(symbols, num_partial)
        if min(pool.num_free for pool in self.cache.pools) < len(symbols):
            return
        insertion = self.cache.extend(
            request, tokens, segment=segment, priority=priority, num_behind=num_behind
        )
        chains = self.model.chains(request.identity, request.tokens)[num_before:]
        assert insertion.num_existing_pages == sum(chain in self.model.page_ids for chain in chains)
        self.insert(chains, request.own, insertion.page_ids)
        assert request.lock.num_pages == num_before + len(symbols)
        self.model.locks[index] = (request.identity, tuple(request.tokens))

    def heal(self, index: int, num_pages: int, num_behind: int) -> None:
        """Give the tree what it lacks of the last pages of a lock."""
        request = self.running[index]
        start = max(0, request.lock.num_pages - num_pages)
        if min(pool.num_free for pool in self.cache.pools) < num_pages:
            return
        kept = self.cache.heal(request, start, num_behind)
        chains = self.model.chains(request.identity, request.tokens)[start:]
        self.insert(chains, request.own, kept)

    def insert(self, chains: Sequence[Chain], own: PageIds, kept: PageIds) -> None:
        """The tree was given `own`, and says that it now holds `kept`."""
        for chain, given, held in zip(chains, pages_of(own), pages_of(kept), strict=True):
            assert self.model.insert(chain, given) == held

    def finish(self, index: int) -> None:
        request = self.running.pop(index)
        self.tree.unlock(request.lock)
        self.model.locks.pop(index)

        # What holds nothing may go with its last lock.
        chains = self.model.chains(request.identity, request.tokens)
        left = self.cache.match(request.tokens, request.identity).num_pages
        self.model.forget_hollow(chains[left:])

    def serve(self, symbols: Sequence[int], identity: PageKey, priority: int) -> None:
        """A whole request."""
        found = self.match(symbols, identity)
        self.start(found)
        self.extend(-1, symbols[found.match.num_pages :], Segment.PROMPT, priority)
        self.finish(-1)

    def withdraw(self, index: int) -> None:
        """Finish a request as if it had never come: its hits are taken back."""
        take_back_hit(self.running[index].lock.node)
        self.finish(index)

    def evict(self, num_pages: Sequence[int]) -> None:
        """Evict, and compare what went with what could and what had to go."""
        wanted = zip(num_pages, self.model.reaches, strict=True)
        num_whole = max([num for num, reach in wanted if reach is None], default=0)
        expected = self.order.victims(num_whole)
        num_evictable = [self.model.num_evictable(group) for group in self.groups]
        ending = self.keys_in_windows()
        victims = self.cache.evict(*num_pages)

        removed = [victim for victim in victims if victim.is_removed]
        if None in self.model.reaches:
            assert [victim.keys for victim in removed] == expected
        for group, reach in enumerate(self.model.reaches):
            num_wanted = num_whole if reach is None else num_pages[group]
            num_at_least = min(num_wanted, num_evictable[group])
            num_removed = sum(np.count_nonzero(victim.page_ids[group]) for victim in removed)
            num_out = sum(np.count_nonzero(victim.page_ids[group]) for victim in victims)
            assert num_out == max(num_at_least, num_removed)
        self.model.evict(victims)

        if not num_whole:
            self.require_inner_pages_first(victims, ending)

    def keys_in_windows(self) -> list[set[PageKey]]:
        """Per group, keys of the pages that are in the window at some node's end, or next to it."""
        nodes = list(self.tree._forest)
        return [
            {key for node in nodes for key in split_keys(node.keys)[-reach - 1 :]}
            if reach
            else set()
            for reach in self.model.reaches
        ]

    def require_inner_pages_first(
        self, victims: Sequence[Victim], ending: Sequence[set[PageKey]]
    ) -> None:
        """No window was broken while a group had pages to lose that are in none."""
        for group in self.groups:
            lost = {
                key
                for victim in victims
                for key, page in zip(
                    split_keys(victim.keys), victim.page_ids[group].tolist(), strict=True
                )
                if page
            }
            left = self.model.cached(group) - self.model.locked(group)
            inner = {key for key, chain in self.model.by_key.items() if chain in left}
            assert not (lost & ending[group] and inner - ending[group])

    def inspect(self) -> None:
        expected, found = self.order.inspect(), self.tree.inspect()
        assert (found and found.keys) == (expected and expected.keys)

    def inspect_ahead(self, num_pages: int) -> None:
        """Afterwards the first `num_pages` pages of leaves were inspected, and none was twice."""
        for found in self.tree.inspect_ahead(num_pages):
            expected = self.order.inspect()
            assert expected is not None
            assert found.keys == expected.keys
        for leaf in self.order.leaves():
            if num_pages <= 0:
                break
            assert self.order.is_inspected(leaf)
            num_pages -= leaf.num_pages

    def flush(self) -> None:
        self.model.evict(self.cache.flush())
        for group in self.groups:
            assert self.tree.num_evictable_pages(group) == self.model.num_evictable(group) == 0

    def check(self) -> None:
        self.cache.check()
        for group in self.groups:
            assert self.tree.num_cached_pages(group) == len(self.model.cached(group))
            assert self.tree.num_locked_pages(group) == len(self.model.locked(group))
        assert self.tree.num_locks == len(self.running)
        leaves, first = self.order.leaves(), self.tree.peek()
        assert (first and first.keys) == (leaves[0].keys if leaves else None)
        assert self.tree.num_inspected_pages == self.order.num_inspected_pages

    def end(self) -> None:
        """Finish and flush everything: nothing may be left."""
        while self.running:
            self.finish(-1)
        self.flush()
        self.check()
        assert self.tree.num_nodes == 0
        assert all(pool.num_free == pool.num_pages for pool in self.cache.pools)


LAYOUTS: list[tuple[int | None, ...]] = [
    (None,),
    (None, None),
    (None, 1),
    (None, 3),
    (1, None, 3),
    (1,),
    (3,),
    (3, 1),
]
"""How many pages each group reaches back: FULL groups, WINDOW groups, and WINDOW groups alone."""
SYMBOLS = st.lists(st.integers(0, 2), min_size=1, max_size=7)
"""Few enough that prompts share, extend and diverge all the time."""
IDENTITY = st.sampled_from(IDENTITIES)


class TreeMachine(RuleBasedStateMachine):
    """The tree and its pools agree with the model after every step, and no page is lost."""

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        reaches=st.sampled_from(LAYOUTS),
    )
    def build(self, page_size: int, eviction: str, reaches: tuple[int | None, ...]) -> None:
        self.checked = CheckedCache(page_size=page_size, eviction=eviction, reaches=reaches)
        self.matches: list[Found] = []

    @rule(symbols=SYMBOLS, identity=IDENTITY, num_partial=st.integers(0, 15))
    def match(self, symbols: list[int], identity: PageKey, num_partial: int) -> None:
        self.matches.append(self.checked.match(symbols, identity, num_partial))

    @precondition(lambda self: self.matches)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.matches) - 1))
        self.checked.start(self.matches.pop(index), data.draw(st.integers(0, 2)))

    @precondition(lambda self: self.checked.running)
    @rule(
        data=st.data(),
        symbols=SYMBOLS,
        segment=st.sampled_from(Segment),
        priority=st.integers(-2, 2),
        num_partial=st.integers(0, 15),
        num_behind=st.integers(0, 4),
    )
    def extend(
        self,
        data: st.DataObject,
        symbols: list[int],
        segment: Segment,
        priority: int,
        num_partial: int,
        num_behind: int,
    ) -> None:
        index = data.draw(st.integers(0, len(self.checked.running) - 1))
        self.checked.extend(index, symbols, segment, priority, num_partial, num_behind)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data(), num_pages=st.integers(0, 9), num_behind=st.integers(0, 4))
    def heal(self, data: st.DataObject, num_pages: int, num_behind: int) -> None:
        index = data.draw(st.integers(0, len(self.checked.running) - 1))
        self.checked.heal(index, num_pages, num_behind)

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.checked.finish(data.draw(st.integers(0, len(self.checked.running) - 1)))

    @precondition(lambda self: self.checked.running)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.checked.withdraw(data.draw(st.integers(0, len(self.checked.running) - 1)))

    @rule(symbols=SYMBOLS, identity=IDENTITY, priority=st.integers(-2, 2))
    def serve(self, symbols: list[int], identity: PageKey, priority: int) -> None:
        self.checked.serve(symbols, identity, priority)

    @rule(symbols=SYMBOLS, identity=IDENTITY)
    def touch(self, symbols: list[int], identity: PageKey) -> None:
        cache = self.checked.cache
        cache.tree.touch(self.checked.match(symbols, identity).match, now_s=cache.tick())

    @precondition(lambda self: any(map(self.checked.tree.num_evictable_pages, self.checked.groups)))
    @rule(num_pages=st.tuples(*[st.integers(0, 12)] * 3))
    def evict(self, num_pages: tuple[int, ...]) -> None:
        self.checked.evict(num_pages[: len(self.checked.groups)])

    @rule(num_pages=st.integers(1, 12))
    def evict_from_the_last_group(self, num_pages: int) -> None:
        self.checked.evict([*[0] * (len(self.checked.groups) - 1), num_pages])

    @rule()
    def inspect(self) -> None:
        self.checked.inspect()

    @rule(num_pages=st.integers(0, 12))
    def inspect_ahead(self, num_pages: int) -> None:
        self.checked.inspect_ahead(num_pages)

    @precondition(lambda self: self.checked.tree.num_evictable_pages(0) >= 24)
    @rule()
    def flush(self) -> None:
        self.checked.flush()

    @invariant()
    def owners_agree_with_the_model(self) -> None:
        self.checked.check()

    def teardown(self) -> None:
        self.checked.end()


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True
)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_long_random_run_loses_no_page(policy: str, page_size: int) -> None:
    rng = np.random.default_rng(page_size)
    checked = CheckedCache(page_size=page_size, eviction=policy)
    for _ in range(150):
        symbols = rng.integers(0, 3, size=rng.integers(1, 9)).tolist()
        identity = IDENTITIES[int(rng.random() < 0.2)]
        num_running = len(checked.running)
        match rng.integers(0, 9):
            case 0 | 1:
                checked.serve(symbols, identity, int(rng.integers(-2, 3)))
            case 2 | 3 if num_running < 5:
                checked.start(checked.match(symbols, identity))
            case 4 if num_running:
                segment = list(Segment)[int(rng.integers(2))]
                checked.extend(
                    int(rng.integers(num_running)), symbols, segment, int(rng.integers(-2, 3))
                )
            case 5 if num_running:
                checked.finish(int(rng.integers(num_running)))
            case 6:
                checked.evict([int(rng.integers(1, 13))])
            case 7:
                checked.inspect_ahead(int(rng.integers(1, 40)))
            case _:
                checked.inspect()
        checked.check()
    checked.end()


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_equal_histories_evict_equally(policy: str) -> None:
    def victims() -> list[bytes]:
        cache = Cache(page_size=1, eviction=policy)
        for number in range(60):
            cache.run([number % 3, number % 7, number % 5, number], priority=number % 4)
        return [victim.keys for victim in cache.evict(100)]

    assert victims() == victims()
