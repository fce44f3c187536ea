"""A prefix cache as a dict of whole chains, and an L1 that uses a tree as a Scheduler would."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.eviction import EVICTION_POLICIES
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import EvictionKey, RadixNode
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree, Segment, Victim
from raydix.runtime.messages.arrays import Int32Array

Chain = tuple[PageKey, tuple[int, ...]]
"""An identity and all tokens up to a page boundary: what a page stands for."""


class PrefixModel:
    """What `RadixTree` should hold: one page id per chain, and one entry per lock of a chain."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.page_ids: dict[Chain, int] = {}
        self.serials: dict[Chain, int] = {}
        """Tells a page from a later one of the same chain, even in the same place."""
        self.num_inserted = 0
        self.locks: list[Chain] = []

    def chains(self, identity: PageKey, tokens: Sequence[int]) -> list[Chain]:
        """The chains of a prompt's full pages, shortest first."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(identity, tuple(tokens[:end])) for end in ends]

    def match(self, identity: PageKey, tokens: Sequence[int]) -> list[int]:
        """Page ids of the longest cached prefix."""
        page_ids = []
        for chain in self.chains(identity, tokens):
            if chain not in self.page_ids:
                break
            page_ids.append(self.page_ids[chain])
        return page_ids

    def insert(self, chain: Chain, page_id: int) -> int:
        """Cache a page unless its chain has one; returns the one that it has now."""
        if chain not in self.page_ids:
            self.page_ids[chain] = page_id
            self.num_inserted += 1
            self.serials[chain] = self.num_inserted
        return self.page_ids[chain]

    @property
    def locked(self) -> set[Chain]:
        """Cached chains that some lock protects."""
        return {chain for lock in self.locks for chain in self.chains(*lock)}

    def evict(self, page_ids: Sequence[int]) -> None:
        """Forget these pages. None may be locked, nor still be needed by a longer chain."""
        gone = {chain for chain, page_id in self.page_ids.items() if page_id in set(page_ids)}
        assert len(gone) == len(page_ids), "a page was evicted that is not cached, or twice"
        assert not gone & self.locked, "a locked page was evicted"
        for chain in gone:
            del self.page_ids[chain]
            del self.serials[chain]
        for identity, tokens in self.page_ids:
            parent = (identity, tokens[: -self.page_size])
            assert not parent[1] or parent in self.page_ids, "a page was orphaned"


class EvictionModel:
    """In which order a tree's pages should go and be inspected, sorted anew each time.

    Leaves with equal policy keys go as they came, which their tickets tell.
    """

    def __init__(self, tree: RadixTree, eviction: str) -> None:
        self._tree = tree
        self._policy_key = EVICTION_POLICIES[eviction]
        self._handed_out: dict[RadixNode, int] = {}  # by its ticket then

    def leaves(self) -> list[RadixNode]:
        """All leaves that no lock protects, the first to go first."""
        nodes = [node for node in self._tree._forest if not node.children and not node.num_locks]
        return sorted(nodes, key=lambda node: (self._policy_key(node), node.ticket))

    def victims(self, num_pages: int) -> list[bytes]:
        """The keys of what `evict` should take, victim by victim."""
        waiting: dict[RadixNode, tuple[EvictionKey, int]] = {
            node: (self._policy_key(node), node.ticket) for node in self.leaves()
        }
        num_children = {node: len(node.children) for node in self._tree._forest}
        next_ticket = max((node.ticket for node in waiting), default=0) + 1
        victims = []
        while num_pages > 0 and waiting:
            node = min(waiting, key=lambda node: waiting[node])
            num_taken = min(num_pages, node.num_pages)
            victims.append(node.keys[-num_taken * KEY_BYTES :])
            num_pages -= num_taken
            if num_taken < node.num_pages:
                break

            del waiting[node]
            parent = node.parent
            assert parent is not None
            if parent.parent is None:
                continue
            num_children[parent] -= 1
            if not num_children[parent] and not parent.num_locks:
                waiting[parent] = (self._policy_key(parent), next_ticket)
                next_ticket += 1
        return victims

    def is_inspected(self, leaf: RadixNode) -> bool:
        """Whether the leaf was handed out since it entered the order."""
        return self._handed_out.get(leaf) == leaf.ticket

    def inspect(self) -> RadixNode | None:
        """Hand the next leaf out."""
        leaf = next((leaf for leaf in self.leaves() if not self.is_inspected(leaf)), None)
        if leaf is not None:
            self._handed_out[leaf] = leaf.ticket
        return leaf

    @property
    def num_inspected_pages(self) -> int:
        """Pages of leaves that were handed out and are still there."""
        return sum(leaf.num_pages for leaf in self.leaves() if self.is_inspected(leaf))


@dataclass(slots=True)
class Request:
    """A running request: its tokens so far, all of whose full pages are published."""

    identity: PageKey
    tokens: list[int]
    lock: Lock
    match: Match
    insertion: Insertion | None = None
    num_duplicates: int = 0


@dataclass(slots=True)
class Cache:
    """One L1 with a clock that ticks by a second per use. Released pages are free at once."""

    page_size: int = 1
    num_pages: int = 512
    eviction: str = "lru"
    num_groups: int = 1
    identity: PageKey = field(default_factory=root_key)
    now_s: float = 0.0
    tree: RadixTree = field(init=False)
    pools: tuple[PagePool, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = RadixTree(
            page_size=self.page_size, num_groups=self.num_groups, eviction=self.eviction
        )
        self.pools = tuple(PagePool(self.num_pages) for _ in range(self.num_groups))

    def tick(self) -> float:
        """A later time than any before."""
        self.now_s += 1.0
        return self.now_s

    def match(self, tokens: Sequence[int], identity: PageKey | None = None) -> Match:
        """Match tokens of the default identity."""
        return self.tree.match(identity or self.identity, pack_tokens(tokens))

    def num_matched(self, tokens: Sequence[int]) -> int:
        """Matched tokens."""
        return self.match(tokens).num_pages * self.page_size

    def start(self, tokens: Sequence[int], identity: PageKey | None = None) -> Request:
        """Match and lock, without inserting."""
        match = self.match(tokens, identity)
        lock = self.tree.lock(match, now_s=self.tick())
        cached = list(tokens[: match.num_pages * self.page_size])
        return Request(identity or self.identity, cached, lock, match)

    def extend(
        self,
        request: Request,
        tokens: Sequence[int],
        *,
        segment: Segment = Segment.PROMPT,
        priority: int = 0,
    ) -> Insertion:
        """Publish the full pages after the request's tokens; give duplicates back to the pool."""
        packed = pack_tokens(tokens)
        keys = extend_keys(request.lock.last_key, packed, self.page_size)
        num_pages = len(split_keys(keys))
        own = tuple(self.allocate(pool, num_pages) for pool in self.pools)
        insertion = self.tree.insert(
            request.lock, packed, own, keys, segment=segment, priority=priority, now_s=self.tick()
        )
        for pool, mine, kept in zip(self.pools, own, insertion.page_ids, strict=True):
            pool.release(mine[mine != kept], after_step=-1)
        request.tokens += tokens[: num_pages * self.page_size]
        request.insertion = insertion
        request.num_duplicates += int(np.count_nonzero(own[0] != insertion.page_ids[0]))
        return insertion

    def allocate(self, pool: PagePool, num_pages: int) -> Int32Array:
        """Pages that are there; tests size their pools so."""
        page_ids = pool.allocate(num_pages)
        assert page_ids is not None, "the test's pool is too small"
        return page_ids

    def run(
        self,
        tokens: Sequence[int],
        output: Sequence[int] = (),
        *,
        identity: PageKey | None = None,
        priority: int = 0,
    ) -> Request:
        """A whole request: start, publish prompt and output, finish."""
        request = self.start(tokens, identity)
        self.extend(request, list(tokens[len(request.tokens) :]), priority=priority)
        if output:
            self.extend(request, output, segment=Segment.OUTPUT, priority=priority)
        self.tree.unlock(request.lock)
        return request

    def evict(self, num_pages: int) -> list[Victim]:
        """Evict and release."""
        victims = self.tree.evict(num_pages)
        self.release(victims)
        return victims

    def flush(self) -> list[Victim]:
        """Flush and release."""
        victims = self.tree.flush()
        self.release(victims)
        return victims

    def release(self, victims: Sequence[Victim]) -> None:
        """Give evicted pages back."""
        for victim in victims:
            for pool, page_ids in zip(self.pools, victim.page_ids, strict=True):
                pool.release(page_ids, after_step=-1)

    def check(self) -> None:
        """Every page is free or cached, in every group, and every owner's invariants hold."""
        self.tree.check()
        assert (
            self.tree.num_evictable_pages + self.tree.num_locked_pages == self.tree.num_cached_pages
        )
        for pool in self.pools:
            pool.check()
            assert pool.num_free + self.tree.num_cached_pages == pool.num_pages
