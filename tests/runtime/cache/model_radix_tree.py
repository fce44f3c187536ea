"""A prefix cache as a dict of whole chains, and an L1 that uses a tree as a Scheduler would."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key, split_keys
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.cache.radix_node import EvictionKey, RadixNode, Segment, Victim
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import Int32Array

Chain = tuple[PageKey, tuple[int, ...]]
"""An identity and all tokens up to a page boundary: what a page stands for."""


class PrefixModel:
    """What `RadixTree` should hold: a page id per chain and group, an entry per lock of a chain.

    An id is 0 where a WINDOW group holds nothing.
    """

    def __init__(self, page_size: int, reaches: Sequence[int | None]) -> None:
        self.page_size = page_size
        self.reaches = tuple(reaches)
        self.page_ids: dict[Chain, list[int]] = {}
        self.by_key: dict[PageKey, Chain] = {}
        self.serials: dict[Chain, int] = {}
        """Tells a page from a later one of the same chain, even in the same place."""
        self.num_inserted = 0
        self.locks: list[Chain] = []

    def chains(self, identity: PageKey, tokens: Sequence[int]) -> list[Chain]:
        """The chains of a prompt's full pages, shortest first."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(identity, tuple(tokens[:end])) for end in ends]

    def match(self, identity: PageKey, tokens: Sequence[int]) -> list[list[int]]:
        """Page ids of the longest cached prefix, per page and group."""
        page_ids = []
        for chain in self.chains(identity, tokens):
            if chain not in self.page_ids:
                break
            page_ids.append(self.page_ids[chain])
        return page_ids

    def insert(self, chain: Chain, page_ids: Sequence[int]) -> list[int]:
        """Cache a page where its chain has none; returns what each group has now."""
        if chain not in self.page_ids:
            self.page_ids[chain] = [0] * len(page_ids)
            keys = extend_keys(chain[0], pack_tokens(chain[1]), self.page_size)
            self.by_key[split_keys(keys)[-1]] = chain
            self.num_inserted += 1
            self.serials[chain] = self.num_inserted
        own = self.page_ids[chain]
        self.page_ids[chain] = [mine or given for mine, given in zip(own, page_ids, strict=True)]
        return self.page_ids[chain]

    def cached(self, group: int) -> set[Chain]:
        """Chains of whose last page a group holds a copy."""
        return {chain for chain, page_ids in self.page_ids.items() if page_ids[group]}

    def locked(self, group: int) -> set[Chain]:
        """The chains that some lock protects: of a WINDOW group, one window."""
        reach = self.reaches[group]
        paths = [self.chains(*lock) for lock in self.locks]
        windows = [path if reach is None else path[max(0, len(path) - reach) :] for path in paths]
        return {chain for window in windows for chain in window} & self.cached(group)

    def num_evictable(self, group: int) -> int:
        """How many of them no lock protects."""
        return len(self.cached(group)) - len(self.locked(group))

    def evict(self, victims: Sequence[Victim]) -> None:
        """Forget these pages. None may be locked, nor still be needed by a longer chain."""
        locked = [self.locked(group) for group in range(len(self.reaches))]
        paths = {chain for lock in self.locks for chain in self.chains(*lock)}
        for victim in victims:
            page_ids = zip(*[ids.tolist() for ids in victim.page_ids], strict=True)
            for key, gone in zip(split_keys(victim.keys), page_ids, strict=True):
                chain = self.by_key[key]
                own = self.page_ids[chain]
                for group, page_id in enumerate(gone):
                    assert page_id in (0, own[group]), "a page was evicted that is not cached"
                    assert not page_id or chain not in locked[group], "a locked page was evicted"
                    assert not page_id or victim.is_removed or self.reaches[group] is not None
                pairs = zip(gone, own, strict=True)
                self.page_ids[chain] = [0 if out else page_id for out, page_id in pairs]
                if victim.is_removed:
                    assert chain not in paths, "a locked path was evicted"
                    assert not any(self.page_ids[chain]), "a removed page was kept"
                    self.forget(chain)
        self.require_whole_chains()

    def forget(self, chain: Chain) -> None:
        """Nothing is known of a chain any more."""
        del self.page_ids[chain]
        del self.serials[chain]

    def forget_hollow(self, chains: Sequence[Chain]) -> None:
        """Check that no group holds chains that went with their lock, or what is behind them."""
        for chain in chains:
            assert not any(self.page_ids[chain]), "a page has vanished"
            self.forget(chain)
        self.require_whole_chains()

    def require_whole_chains(self) -> None:
        """No chain has lost what is before its end."""
        for identity, tokens in self.page_ids:
            parent = (identity, tokens[: -self.page_size])
            assert not parent[1] or parent in self.page_ids, "a page was orphaned"


class EvictionModel:
    """The order in which a tree's pages should go and be inspected, sorted anew each time.

    Leaves with equal policy keys go as they came, which their tickets tell.
    """

    def __init__(self, tree: RadixTree, eviction: EvictionPolicy) -> None:
        self._tree = tree
        self._policy_key = EVICTION_POLICIES[eviction]
        self._handed_out: dict[RadixNode, tuple[int, float]] = {}  # its ticket and use then

    def leaves(self) -> list[RadixNode]:
        """All leaves that no lock protects, the first to go first."""
        nodes = [node for node in self._tree.forest if not node.children and not node.num_locks]
        return sorted(
            nodes, key=lambda node: (self._policy_key(node, node.last_use_s), node.ticket)
        )

    def victims(self, num_pages: int) -> list[bytes]:
        """The keys of what `evict` should take, victim by victim."""
        waiting: dict[RadixNode, tuple[EvictionKey, int]] = {
            node: (self._policy_key(node, node.last_use_s), node.ticket) for node in self.leaves()
        }
        num_children = {node: len(node.children) for node in self._tree.forest}
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
                waiting[parent] = (self._policy_key(parent, parent.last_use_s), next_ticket)
                next_ticket += 1
        return victims

    def may_be_inspected(self, node: RadixNode) -> bool:
        """Whether the node was handed out since it was used. As a leaf it may be so anew."""
        ticket, last_use_s = self._handed_out.get(node, (0, None))
        is_same = ticket in (0, node.ticket) and last_use_s == node.last_use_s
        return is_same and not node.num_locks

    def must_be_inspected(self, node: RadixNode) -> bool:
        """Whether the node was handed out since it was used, or became a leaf."""
        is_out = self._handed_out.get(node) == (node.ticket, node.last_use_s)
        return is_out and not node.num_locks

    def inspect(self, inspected: set[RadixNode]) -> list[RadixNode]:
        """Hand the next leaf out, behind those above that go when all are out that they hold.

        `inspected`: what is out already, to which they are added.
        """
        leaf = next((leaf for leaf in self.leaves() if leaf not in inspected), None)
        nodes = [] if leaf is None else [leaf]
        while nodes:
            node = nodes[0]
            inspected.add(node)
            self._handed_out[node] = (node.ticket, node.last_use_s)
            parent = node.parent
            assert parent is not None
            is_held = bool(parent.num_locks or set(parent.children.values()) - inspected)
            if parent.parent is None or is_held or parent in inspected:
                break
            nodes.insert(0, parent)
        return nodes


@dataclass(slots=True)
class Request:
    """A running request: its tokens so far, all of whose full pages are published."""

    identity: PageKey
    tokens: list[int]
    lock: Lock
    match: Match
    own: PageIds = ()
    """What it last gave the tree."""
    insertion: Insertion | None = None
    num_duplicates: int = 0


@dataclass(slots=True)
class Cache:
    """One L1 with a clock that ticks by a second per use. Released pages are free at once."""

    page_size: int = 1
    num_pages: int = 512
    eviction: EvictionPolicy = EvictionPolicy.LRU
    reaches: tuple[int | None, ...] = (None,)
    identity: PageKey = field(default_factory=root_key)
    now_s: float = 0.0
    tree: RadixTree = field(init=False)
    pools: tuple[PagePool, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = RadixTree(
            page_size=self.page_size, reaches=self.reaches, eviction=self.eviction
        )
        self.pools = tuple(PagePool(self.num_pages) for _ in self.reaches)

    def tick(self) -> float:
        """A later time than any before."""
        self.now_s += 1.0
        return self.now_s

    def match(self, tokens: Sequence[int], identity: PageKey | None = None) -> Match:
        """Match tokens of the default identity."""
        return self.tree.match(identity or self.identity, pack_tokens(tokens))

    def num_matched(self, tokens: Sequence[int]) -> int:
        """The number of matched tokens."""
        return self.match(tokens).num_pages * self.page_size

    def start(self, tokens: Sequence[int], identity: PageKey | None = None) -> Request:
        """Match and lock, without inserting."""
        match = self.match(tokens, identity)
        lock = self.tree.lock(match, match.num_pages, now_s=self.tick())
        cached = list(tokens[: match.num_pages * self.page_size])
        return Request(identity or self.identity, cached, lock, match)

    def extend(
        self,
        request: Request,
        tokens: Sequence[int],
        *,
        segment: Segment = Segment.PROMPT,
        priority: int = 0,
        num_behind: int = 0,
    ) -> Insertion:
        """Publish the full pages after the request's tokens; give duplicates back to the pool.

        Of the first `num_behind` WINDOW groups have none.
        """
        packed = pack_tokens(tokens)
        keys = extend_keys(request.lock.last_key, packed, self.page_size)
        num_pages = len(split_keys(keys))
        own = self.take(num_pages, num_behind)
        insertion = self.tree.insert(
            request.lock, packed, own, keys, segment=segment, priority=priority, now_s=self.tick()
        )
        self.release_duplicates(own, insertion.page_ids)
        request.own = own
        request.tokens += tokens[: num_pages * self.page_size]
        request.insertion = insertion
        request.num_duplicates += int(np.count_nonzero(own[0] != insertion.page_ids[0]))
        return insertion

    def heal(self, request: Request, start: int, num_behind: int = 0) -> PageIds:
        """Give the tree what WINDOW groups lack from page `start` to the end of a lock.

        Of the first `num_behind` there are none.
        """
        num_pages = request.lock.num_pages - start
        own = tuple(
            np.concatenate((np.zeros(num, np.int32), self.allocate(pool, num_pages - num)))
            for pool, reach in zip(self.pools, self.reaches, strict=True)
            for num in [num_pages if reach is None else min(num_behind, num_pages)]
        )
        kept = self.tree.heal(request.lock, start, own)
        self.release_duplicates(own, kept)
        request.own = own
        return kept

    def take(self, num_pages: int, num_behind: int = 0) -> PageIds:
        """Pages of all groups, but of WINDOW groups not the first `num_behind`."""
        num_missing = [0 if reach is None else min(num_behind, num_pages) for reach in self.reaches]
        return tuple(
            np.concatenate((np.zeros(num, np.int32), self.allocate(pool, num_pages - num)))
            for pool, num in zip(self.pools, num_missing, strict=True)
        )

    def release_duplicates(self, own: PageIds, kept: PageIds) -> None:
        """Give back those pages for which the tree has others."""
        for pool, mine, theirs in zip(self.pools, own, kept, strict=True):
            pool.release(mine[(mine != theirs) & (mine > 0)], after_step=-1)

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
        self.tree.unlock(request.lock, last_step=0)
        return request

    def evict(self, *num_pages: int) -> list[Victim]:
        """Evict and release so many pages per group, or so many of each group."""
        per_group = num_pages * len(self.reaches) if len(num_pages) == 1 else num_pages
        victims = self.tree.evict(per_group)
        self.release(victims)
        return victims

    def flush(self) -> list[Victim]:
        """Flush and release, a few nodes at a time."""
        walk = FlushWalk(used_until_s=math.inf)
        victims: list[Victim] = []
        while not walk.is_done:
            victims += self.tree.flush_some(walk, 3)
        self.release(victims)
        return victims

    def release(self, victims: Sequence[Victim]) -> None:
        """Give evicted pages back."""
        for victim in victims:
            for pool, page_ids in zip(self.pools, victim.page_ids, strict=True):
                pool.release(page_ids[page_ids > 0], after_step=-1)

    def check(self) -> None:
        """Every page is free or cached, in every group, and every owner's invariants hold."""
        self.tree.check()
        for group, pool in enumerate(self.pools):
            pool.check()
            assert pool.num_free + self.tree.num_cached_pages(group) == pool.num_pages
