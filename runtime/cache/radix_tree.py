"""The prefix index of one L1: a radix tree of page-granular runs, one root per identity.

Only leaves are evicted, so a chain loses its tail before its head. A split makes a new upper node and leaves the lower
one in place: locks and matches name the node where they end, which a split therefore never moves.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.eviction import EVICTION_POLICIES, EvictionOrder, OrderEntry
from raydix.runtime.cache.page_key import TOKEN_BYTES
from raydix.runtime.cache.radix_check import collect_nodes
from raydix.runtime.cache.radix_node import RadixNode, count_shared_pages, new_root, split_node, use_path
from raydix.runtime.cache.radix_node import Segment as Segment
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.host import KEY_BYTES


@dataclass(slots=True)
class Match:
    """The longest cached prefix of a token run. Holds nothing: lock it before anything else is inserted or evicted."""

    num_pages: int
    page_ids: tuple[Int32Array, ...]
    """Per KV group, one id per page, ready for a plan."""
    last_key: PageKey
    """Key of the last matched page, or the identity if none matched."""
    node: RadixNode | None = field(repr=False)
    """Where the match ended; None if no page matched."""


@dataclass(slots=True)
class Lock:
    """The receipt of a locked prefix: its pages, and those above them, stay until `unlock`."""

    num_pages: int
    last_key: PageKey
    node: RadixNode | None = field(repr=False)
    """The deepest locked node; None once unlocked."""


@dataclass(slots=True)
class Insertion:
    """What the tree now holds for an inserted span.

    Where `page_ids` differ from those given, the given page is a duplicate and stays the caller's to release.
    """

    page_ids: tuple[Int32Array, ...]
    num_existing_pages: int
    """Leading pages of the span that the tree held before."""


@dataclass(slots=True)
class Victim:
    """A node to be evicted, or evicted: its pages are the caller's to release."""

    page_ids: tuple[Int32Array, ...]
    keys: bytes
    """32 bytes per page."""
    node: RadixNode = field(repr=False)

    @property
    def num_pages(self) -> int:
        """Pages of the node, the same in every KV group."""
        return len(self.keys) // KEY_BYTES


class RadixTree:
    """Owns: which GPU pages hold which prefixes of one L1: run-length nodes, locks, hits, priority, last use.

    Tokens are packed (see `page_key`); only whole pages are matched and kept. Page ids come in one array per KV group.
    Page ids belong to the pool: whoever removes a node releases its pages.
    """

    def __init__(self, *, page_size: int, num_groups: int = 1, eviction: str = "lru") -> None:
        if eviction not in EVICTION_POLICIES:
            raise ValueError(f"eviction is {eviction!r}; expected one of {', '.join(EVICTION_POLICIES)}")
        self.page_size = page_size
        self.num_groups = num_groups
        self.num_cached_pages = 0
        self.num_locked_pages = 0
        self.num_nodes = 0
        self.num_locks = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[PageKey, RadixNode] = {}
        self._order = EvictionOrder(EVICTION_POLICIES[eviction])

    @property
    def num_evictable_pages(self) -> int:
        """Pages that no lock protects. All of them can be evicted."""
        return self.num_cached_pages - self.num_locked_pages

    def match(self, identity: PageKey, packed_tokens: bytes) -> Match:
        """Find the longest cached prefix, in whole pages. Changes nothing."""
        page_bytes = self._page_bytes
        node = self._roots.get(identity)
        path: list[RadixNode] = []
        offset = 0
        while node is not None:
            node = node.children.get(packed_tokens[offset : offset + page_bytes])
            if node is None:
                break
            path.append(node)
            edge = node.edge
            if not packed_tokens.startswith(edge, offset):
                offset += count_shared_pages(edge, packed_tokens, offset, page_bytes) * page_bytes
                break
            offset += len(edge)
        if not path:
            return Match(0, (empty(),) * self.num_groups, identity, None)
        num_pages = offset // page_bytes
        last = path[-1]
        key_end = (num_pages - last.start) * KEY_BYTES
        last_key = PageKey(last.keys[key_end - KEY_BYTES : key_end])
        if len(path) == 1:
            return Match(num_pages, tuple([ids[:num_pages] for ids in last.page_ids]), last_key, last)
        return Match(num_pages, self._join([found.page_ids for found in path], num_pages), last_key, last)

    def lock(self, match: Match, *, now_s: float) -> Lock:
        """Protect a match from eviction. Splits where it ends, counts as a use and one hit of each node of its path.

        Raises AccountingError if some of its pages have been evicted since.
        """
        node = self._end_node(match, now_s)
        self.num_locks += 1
        current: RadixNode | None = node
        while current is not None:
            self._lock_node(current)
            current.last_use_s = now_s
            current = current.parent
        return Lock(match.num_pages, match.last_key, node)

    def unlock(self, lock: Lock) -> None:
        """Give a lock back. Raises AccountingError if it was given back before."""
        node = self._locked_node(lock)
        lock.node = None
        self.num_locks -= 1
        current: RadixNode | None = node
        while current is not None:
            current.num_locks -= 1
            if not current.num_locks:
                self.num_locked_pages -= current.end - current.start
            current = current.parent
        self._settle(node)

    def insert(
        self,
        lock: Lock,
        packed_tokens: bytes,
        page_ids: tuple[Int32Array, ...],
        keys: bytes,
        *,
        segment: Segment,
        priority: int = 0,
        now_s: float,
    ) -> Insertion:
        """Add the full pages of `packed_tokens`, which follow the locked prefix; the lock then reaches to their end.

        `page_ids` and `keys` have one entry per full page. Pages that the tree has already are taken over from it. A
        leaf that only this lock has ever used grows in place while the segment is the same. `priority` (lower is more
        important) also raises that of the whole prefix.
        Raises ValueError if the lengths disagree.
        """
        node = self._locked_node(lock)
        num_pages = len(packed_tokens) // self._page_bytes
        self._require_lengths(num_pages, page_ids, keys)
        existing = self._descend(node, packed_tokens, num_pages)
        num_existing = 0
        if existing:
            num_existing = existing[-1].end - node.end
            node = existing[-1]
        if num_existing < num_pages:
            is_own_leaf = node.num_hits == node.num_locks == 1 and not node.children and node.parent is not None
            edge = packed_tokens[num_existing * self._page_bytes : num_pages * self._page_bytes]
            run = RadixNode(
                parent=node,
                edge=edge,
                first_page=edge[: self._page_bytes],
                page_ids=tuple(int32_array(ids[num_existing:]) for ids in page_ids),
                keys=keys[num_existing * KEY_BYTES :],
                start=node.end,
                end=node.end + num_pages - num_existing,
                segment=segment,
                created_s=now_s,
                last_use_s=now_s,
                priority=priority,
            )
            node = self._grow(node, run) if is_own_leaf and node.segment is segment else self._attach(node, run)
        use_path(node, priority, now_s)
        lock.node, lock.num_pages, lock.last_key = node, node.end, node.last_key
        if not num_existing:
            return Insertion(page_ids, 0)
        runs = [found.page_ids for found in existing]
        runs.append(tuple(ids[num_existing:] for ids in page_ids))
        return Insertion(self._join(runs, num_pages), num_existing)

    def touch(self, match: Match, *, now_s: float) -> None:
        """Count a match as a use of the nodes on its path, without a lock, a hit or a split."""
        current: RadixNode | None = None if match.node is None else self._containing_node(match)
        while current is not None and current.parent is not None:
            current.last_use_s = now_s
            if current.ticket:
                self._order.add(current)
            current = current.parent

    def victims(self, num_pages: int) -> list[Victim]:
        """What `evict` would remove, in order: leaves first, a parent after all its children. Changes nothing."""
        popped: list[OrderEntry] = []
        ripened: list[RadixNode] = []
        num_taken_below: Counter[RadixNode] = Counter()
        num_found = 0
        while num_found < num_pages and (entry := self._order.pop()) is not None:
            node = entry[2]
            popped.append(entry)
            num_found += node.num_pages
            parent = node.parent
            assert parent is not None, "a root is never evictable"
            num_taken_below[parent] += 1
            is_bare = num_taken_below[parent] == len(parent.children)
            if is_bare and not parent.num_locks and parent.parent is not None:
                self._order.add(parent)
                ripened.append(parent)
        for node in ripened:
            if node.ticket:
                self._order.discard(node)
        for entry in popped:
            if not entry[2].children:
                self._order.restore(entry)
        self._order.compact()
        return [Victim(node.page_ids, node.keys, node) for _, _, node in popped]

    def remove(self, victims: Sequence[Victim]) -> None:
        """Drop the nodes of victims, in their order.

        Raises AccountingError, and drops none, if one is locked, gone or changed since, or has children that do not
        come before it.
        """
        num_removed_below: Counter[RadixNode] = Counter()
        seen: set[RadixNode] = set()
        for index, victim in enumerate(victims):
            node = victim.node
            num_children = len(node.children) - num_removed_below[node]
            is_current = node.parent is not None and node.keys == victim.keys and node not in seen
            if node.parent is None or not is_current or node.num_locks or num_children:
                raise AccountingError(
                    f"victim {index} of {len(victims)} cannot be removed: {victim.num_pages} pages then, "
                    f"{node.num_pages} now, {node.num_locks} locks, {num_children} children left, "
                    f"{'still' if is_current else 'no longer'} the node that was chosen"
                )
            seen.add(node)
            num_removed_below[node.parent] += 1
        for victim in victims:
            self._order.discard(victim.node)
            self._detach(victim.node)
        self._forget(len(victims), sum(victim.num_pages for victim in victims))

    def evict(self, num_pages: int) -> list[Victim]:
        """Remove leaves in eviction order until `num_pages` pages are out, or all that no lock protects."""
        victims: list[Victim] = []
        num_found = 0
        while num_found < num_pages and (entry := self._order.pop()) is not None:
            node = entry[2]
            num_found += node.end - node.start
            victims.append(Victim(node.page_ids, node.keys, node))
            self._detach(node)
        self._forget(len(victims), num_found)
        return victims

    def flush(self) -> list[Victim]:
        """Remove everything that no lock protects."""
        return self.evict(self.num_evictable_pages)

    def check(self) -> None:
        """Raise AccountingError, with the figures, unless every invariant of the tree holds."""
        nodes = collect_nodes(self._roots, self._page_bytes, self.num_groups)
        found = (
            len(nodes),
            sum(node.num_pages for node in nodes),
            sum(node.num_pages for node in nodes if node.num_locks),
            sum(root.num_locks for root in self._roots.values()),
        )
        counted = (self.num_nodes, self.num_cached_pages, self.num_locked_pages, self.num_locks)
        if found != counted:
            raise AccountingError(f"nodes, cached pages, locked pages, locks: counted {counted}, found {found}")
        evictable = {node for node in nodes if not node.children and not node.num_locks}
        if {node for node in nodes if node.ticket} != evictable:
            raise AccountingError(f"the eviction order does not hold exactly the {len(evictable)} unlocked leaves")
        self._order.check(len(evictable))

    def _require_lengths(self, num_pages: int, page_ids: tuple[Int32Array, ...], keys: bytes) -> None:
        lengths = [len(ids) for ids in page_ids]
        if lengths != [num_pages] * self.num_groups or len(keys) != num_pages * KEY_BYTES:
            raise ValueError(
                f"page ids per group {lengths} and {len(keys)} bytes of keys; expected {self.num_groups} x {num_pages} "
                f"ids and {num_pages * KEY_BYTES} bytes"
            )

    def _locked_node(self, lock: Lock) -> RadixNode:
        if lock.node is None:
            raise AccountingError(f"a lock of {lock.num_pages} pages is used after it was given back")
        return lock.node

    def _containing_node(self, match: Match) -> RadixNode:
        """The node that now holds the last page of a non-empty match."""
        node = match.node
        while node is not None and node.start >= match.num_pages:
            node = node.parent
        if node is None or node.parent is None:
            raise AccountingError(f"a match of {match.num_pages} pages is used after some of them were evicted")
        return node

    def _end_node(self, match: Match, now_s: float) -> RadixNode:
        """The node that ends where the match does, split off if needed; a root if no page matched."""
        if match.node is not None:
            node = self._containing_node(match)
            return node if node.end == match.num_pages else self._split(node, match.num_pages)
        root = self._roots.get(match.last_key)
        if root is None:
            root = self._roots[match.last_key] = new_root(match.last_key, self.num_groups, now_s)
        return root

    def _lock_node(self, node: RadixNode) -> None:
        if not node.num_locks:
            self.num_locked_pages += node.end - node.start
            if node.ticket:
                self._order.discard(node)
        node.num_locks += 1
        node.num_hits += 1

    def _descend(self, node: RadixNode, packed_tokens: bytes, num_pages: int) -> list[RadixNode]:
        """Lock the nodes below `node` that hold the first of `num_pages` pages, splitting where they cease to."""
        page_bytes = self._page_bytes
        path: list[RadixNode] = []
        first = node.end
        while node.end - first < num_pages:
            offset = (node.end - first) * page_bytes
            child = node.children.get(packed_tokens[offset : offset + page_bytes])
            if child is None:
                break
            end = child.start + count_shared_pages(child.edge, packed_tokens, offset, page_bytes)
            node = child if end == child.end else self._split(child, end)
            self._lock_node(node)
            path.append(node)
        return path

    def _attach(self, parent: RadixNode, run: RadixNode) -> RadixNode:
        """Add `run`, locked once, as a child."""
        parent.children[run.first_page] = run
        self.num_nodes += 1
        self.num_cached_pages += run.num_pages
        self._lock_node(run)
        return run

    def _grow(self, node: RadixNode, run: RadixNode) -> RadixNode:
        """Append the pages of `run` to a locked leaf."""
        node.edge += run.edge
        node.page_ids = self._join((node.page_ids, run.page_ids), run.end - node.start)
        node.keys += run.keys
        node.end = run.end
        self.num_cached_pages += run.num_pages
        self.num_locked_pages += run.num_pages
        return node

    def _split(self, node: RadixNode, end: int) -> RadixNode:
        self.num_nodes += 1
        return split_node(node, end, self._page_bytes)

    def _detach(self, node: RadixNode) -> None:
        """Unlink an unlocked leaf that is no longer in the eviction order; `_forget` then counts it out."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.first_page]
        node.parent = None
        if not parent.children:
            self._settle(parent)

    def _forget(self, num_nodes: int, num_pages: int) -> None:
        self.num_nodes -= num_nodes
        self.num_cached_pages -= num_pages
        self._order.compact()

    def _settle(self, node: RadixNode) -> None:
        """Once a node has lost a child or a lock: if it has neither left it may go, a root at once."""
        if node.children or node.num_locks:
            return
        if node.parent is None:
            del self._roots[node.last_key]
        else:
            self._order.add(node)

    def _join(self, runs: Sequence[tuple[Int32Array, ...]], num_pages: int) -> tuple[Int32Array, ...]:
        """Per group, the first `num_pages` ids of the runs one after another, as one new array."""
        return tuple([np.concatenate([run[group] for run in runs])[:num_pages] for group in range(self.num_groups)])
