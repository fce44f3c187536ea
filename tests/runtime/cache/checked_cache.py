"""A cache of which every step is done in a model, too, and compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, split_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_node import RadixNode, Segment, Victim, take_back_hit
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.config.policies import EvictionPolicy
from tests.runtime.cache.model_radix_tree import Cache, Chain, EvictionModel, PrefixModel, Request


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
        self, *, page_size: int, eviction: EvictionPolicy, reaches: tuple[int | None, ...] = (None,)
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
        self.forget_hollow(identity, self.tokens_of(found.symbols))

    def forget_hollow(self, identity: PageKey, tokens: Sequence[int]) -> None:
        """Forget the end of a chain that has gone from the tree, which held nothing of it."""
        left = self.cache.match(tokens, identity).num_pages
        gone = self.model.chains(identity, tokens)[left:]
        self.model.forget_hollow([chain for chain in gone if chain in self.model.page_ids])

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
        for identity, parted in [key for key, ids in self.model.page_ids.items() if not any(ids)]:
            self.forget_hollow(identity, parted)

    def heal(self, index: int, num_pages: int, num_behind: int) -> None:
        """Give the tree what it lacks of the last pages of a lock."""
        request = self.running[index]
        start = max(0, request.lock.num_pages - num_pages)
        has_windows = any(reach is not None for reach in self.model.reaches)
        if not has_windows or min(pool.num_free for pool in self.cache.pools) < num_pages:
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
        self.tree.unlock(request.lock, last_step=0)
        self.model.locks.pop(index)

        # What holds nothing may go with its last lock.
        self.forget_hollow(request.identity, request.tokens)

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
        """Per group, keys of pages in the window of a place to return to."""
        chains = [chain_keys(node) for node in self.tree.forest if node.is_return_point]
        return [
            set() if reach is None else {key for keys in chains for key in keys[-reach:]}
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

    def inspect_ahead(self, num_pages: int) -> None:
        """Afterwards the first `num_pages` pages to go were inspected, and no leaf was twice."""
        inspected = {node for node in self.tree.forest if node.is_inspected}
        for found in self.tree.inspect_ahead(num_pages):
            assert found == self.order.inspect(inspected)
        are_inspected = [leaf.is_inspected for leaf in self.order.leaves()]
        assert are_inspected == sorted(are_inspected, reverse=True), "the first to go come first"
        assert all(are_inspected) or sum(node.num_pages for node in inspected) >= num_pages

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
        for node in self.tree.forest:
            if node.is_inspected:
                assert self.order.may_be_inspected(node)
            else:
                assert not self.order.must_be_inspected(node)

    def end(self) -> None:
        """Finish and flush everything: nothing may be left."""
        while self.running:
            self.finish(-1)
        self.flush()
        self.check()
        assert self.tree.num_nodes == 0
        assert all(pool.num_free == pool.num_pages for pool in self.cache.pools)


def chain_keys(node: RadixNode | None) -> list[PageKey]:
    """Keys of all pages of the chain that ends with a node."""
    keys: list[PageKey] = []
    while node is not None and node.parent is not None:
        keys = [*split_keys(node.keys), *keys]
        node = node.parent
    return keys
