"""The prefix index of one L1: a radix tree of page-granular runs, one root per identity.

Only leaves are evicted, so a chain loses its tail before its head. Of WINDOW groups, of which a
prefix needs no more than the pages before its end, pages go anywhere in a chain: a match tells
where they are missing. A split makes a new upper node and leaves the lower one in place: locks and
matches name the node where they end, which a split therefore never moves.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.page_key import KEY_BYTES, TOKEN_BYTES
from raydix.runtime.cache.page_pools import require_lengths
from raydix.runtime.cache.radix_edges import count_shared_pages
from raydix.runtime.cache.radix_eviction import RadixEviction
from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import (
    RadixNode,
    Segment,
    Victim,
    join_page_ids,
)
from raydix.runtime.cache.radix_retention import RadixRetention
from raydix.runtime.cache.radix_windows import RadixWindows
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array


@dataclass(slots=True)
class Match:
    """The longest cached prefix of a token run.

    It holds nothing: lock it before anything else is inserted or evicted.
    """

    num_pages: int
    page_ids: tuple[Int32Array, ...]
    """Per KV group one id per page, ready for a plan; 0 where the group does not hold the page."""
    last_key: PageKey
    """The key of the last matched page, or the identity if none matched."""
    node: RadixNode | None = field(repr=False)
    """The node where the match ended; None if no page matched."""


@dataclass(slots=True)
class Lock:
    """The receipt of a locked prefix: its pages stay until `unlock`.

    Of a WINDOW group the `reach` pages before its end stay, which hold the window there.
    """

    num_pages: int
    last_key: PageKey
    node: RadixNode | None = field(repr=False)
    """The deepest locked node; None once unlocked."""
    turn: int = 0
    """The number of requests that had ended in this chain before, as far as is known."""


@dataclass(slots=True)
class Insertion:
    """What the tree now holds for an inserted span.

    Where `page_ids` differ from those given, the given page is a duplicate and stays the caller's
    to release.
    """

    page_ids: tuple[Int32Array, ...]
    """One id per page, in each KV group; 0 where neither the tree nor the caller had any."""
    num_existing_pages: int
    """Leading pages of the span that the tree held before."""


class RadixTree:
    """Owns: the locks of one L1's prefixes, whose nodes are in a `RadixForest`.

    `RadixEviction` says which pages go.

    Tokens are packed (see `page_key`); only whole pages are matched and kept. Page ids come in one
    array per KV group, where the padding page's id, 0, says that the group holds nothing of that
    page. They belong to the pools: whoever evicts pages releases them.
    """

    def __init__(
        self,
        *,
        page_size: int,
        reaches: Sequence[int | None] = (None,),
        eviction: EvictionPolicy = EvictionPolicy.LRU,
    ) -> None:
        """Start empty. `reaches`: per KV group, the pages of its window; None: it needs all."""
        self.page_size = page_size
        self.num_groups = len(reaches)
        self.num_locks = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self.forest = RadixForest(page_bytes=self._page_bytes, reaches=reaches)
        has_windows = any(reach is not None for reach in reaches)
        self._windows = RadixWindows(reaches, EVICTION_POLICIES[eviction]) if has_windows else None
        self._eviction = RadixEviction(self.forest, self._windows, eviction, reaches)
        self.retention = RadixRetention(self._eviction, self.forest)

    @property
    def num_nodes(self) -> int:
        """The number of nodes that have pages."""
        return self.forest.num_nodes

    def num_cached_pages(self, group: int) -> int:
        """The number of pages of a group that can be matched."""
        window = None if self._windows is None else self._windows.group(group)
        return self.forest.num_cached_pages if window is None else window.num_cached

    def num_locked_pages(self, group: int) -> int:
        """The number of pages of a group that some lock protects."""
        window = None if self._windows is None else self._windows.group(group)
        return self._eviction.num_locked_pages if window is None else window.num_locked

    def num_evictable_pages(self, group: int) -> int:
        """The number of pages of a group that no lock protects. All of them can be evicted."""
        return self.num_cached_pages(group) - self.num_locked_pages(group)

    def match(self, identity: PageKey, packed_tokens: bytes) -> Match:
        """Find the longest cached prefix, in whole pages. Changes nothing.

        WINDOW groups may lack any of its pages: `page_ids` tell which, and a prefix may be of use
        only up to some earlier end (see `match_groups`).
        """
        path, num_pages = self.forest.find(identity, packed_tokens)
        if not path:
            return Match(0, (empty(),) * self.num_groups, identity, None)

        last = path[-1]
        key_end = (num_pages - last.start) * KEY_BYTES
        last_key = PageKey(last.keys[key_end - KEY_BYTES : key_end])
        if len(path) == 1:
            return Match(
                num_pages, tuple([ids[:num_pages] for ids in last.page_ids]), last_key, last
            )
        page_ids = join_page_ids([node.page_ids for node in path], num_pages)
        return Match(num_pages, page_ids, last_key, last)

    def lock(self, match: Match, num_pages: int, *, now_s: float) -> Lock:
        """Protect the first `num_pages` pages of a match from eviction.

        Of WINDOW groups only the `reach` pages before their end: those that are there, and those
        that come there while the lock lasts. Splits where they end, and counts as a use and one hit
        of each node of their path. Raises AccountingError if some of them have left the tree since.
        """
        num_matched = match.num_pages
        if not 0 <= num_pages <= num_matched:
            raise ValueError(f"num_pages is {num_pages}; expected 0 to {num_matched}")
        node = self._end_node(match, num_pages, now_s)
        self.num_locks += 1
        turn = self._eviction.lock_path(node, now_s)
        if self._windows is not None:
            self._windows.pin(node)
        last_key = match.last_key if num_pages == num_matched else node.last_key
        return Lock(num_pages, last_key, node, turn)

    def unlock(self, lock: Lock, *, last_step: int) -> None:
        """Give a lock back, for the sake of which no step after `last_step` names its pages.

        Raises AccountingError if it was given back before.
        """
        node = self._locked_node(lock)
        lock.node = None
        self.num_locks -= 1
        if self._windows is not None:
            self._windows.unpin(node, lock.num_pages)
        self._eviction.unlock_path(node, last_step)

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
        """Add the full pages of `packed_tokens`, which follow the locked prefix.

        The lock then reaches to their end, and what falls behind a window is protected no more.
        `page_ids` and `keys` have one entry per full page, 0 where a WINDOW group has nothing.
        Pages of which the tree has copies are taken from it, and it takes what it lacks. A leaf
        that only this lock has ever used, and that has lost no end, grows in place while the
        segment is the same. `priority` (lower is more important) also raises that of the whole
        prefix. Raises ValueError if the lengths disagree.
        """
        node = locked = self._locked_node(lock)
        num_pages = len(packed_tokens) // self._page_bytes
        require_lengths(num_pages, self.num_groups, page_ids, keys)
        existing = self._descend(node, packed_tokens, num_pages)
        num_existing = 0
        for found in existing:
            end = num_existing + found.num_pages
            is_filled = found.fill(tuple([ids[num_existing:end] for ids in page_ids]))
            if is_filled and self._windows is not None:
                self._windows.refresh(found)
            num_existing, node = end, found

        if num_existing < num_pages:
            lock.turn = self._eviction.turn_of(keys[num_existing * KEY_BYTES :], lock.turn)
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
                turn=lock.turn,
            )
            node = self._append(node, run)

        self._eviction.use_path(node, priority, now_s, lock.turn)
        if self._windows is not None:
            self._windows.move_pin(locked, lock.num_pages, node)
        lock.node, lock.num_pages, lock.last_key = node, node.end, node.last_key
        if not num_existing:
            return Insertion(page_ids, 0)
        rest = tuple(ids[num_existing:] for ids in page_ids)
        runs = [*[found.page_ids for found in existing], rest]
        return Insertion(join_page_ids(runs, num_pages), num_existing)

    def heal(
        self, lock: Lock, start: int, page_ids: tuple[Int32Array, ...]
    ) -> tuple[Int32Array, ...]:
        """Give the tree pages from `start` to the end of a lock that WINDOW groups lack there.

        Per group one id per page, 0 where there is none to give. Returns what the tree now holds:
        where that differs, the given page is a duplicate and stays the caller's. Raises ValueError
        if the lengths disagree, or no group has a window.
        """
        node = self._locked_node(lock)
        num_pages = lock.num_pages - start
        lengths = [len(ids) for ids in page_ids]
        if (
            self._windows is None
            or not 0 <= start <= lock.num_pages
            or lengths != [num_pages] * self.num_groups
        ):
            raise ValueError(
                f"page ids per group {lengths} from page {start} on; expected {self.num_groups} x "
                f"{num_pages} to the end of a lock of {lock.num_pages} pages, and a WINDOW group"
            )
        return self._windows.heal(node, start, page_ids)

    def drop_inner(self, lock: Lock, group: int, page: int) -> Victim | None:
        """Take a page of a WINDOW group from a lock's last node, if no window there needs it."""
        assert self._windows is not None, "a group has windows"
        return self._windows.drop_inner(group, self._locked_node(lock), page)

    def touch(self, match: Match, *, now_s: float) -> None:
        """Count a match as a use of the nodes on its path, without a lock, a hit or a split."""
        if match.node is None:
            return
        last = self._containing_node(match, match.num_pages)
        current: RadixNode | None = last
        while current is not None and current.parent is not None:
            current.use(now_s)
            self._eviction.touch(current)
            current = current.parent
        if self._windows is not None:
            self._windows.use(last, match.num_pages)

    def inspect_ahead(self, num_pages: int) -> Iterator[list[RadixNode]]:
        """Look at the next `num_pages` pages to be evicted; yields those not inspected before.

        They are yielded as whole leaves, in the order of eviction, each behind the nodes above it
        that it is the last to hold, and stay in the tree. A node that is locked or touched
        afterwards, or becomes a leaf that goes after others, is inspected no more, until it is
        yielded again.
        """
        return self._eviction.inspect_ahead(num_pages)

    def unlocked(self) -> Iterator[Victim]:
        """All pages that no lock protects, heads of chains before their tails. Changes nothing."""
        return self._eviction.unlocked()

    def evict(self, num_pages: Sequence[int], *, last_step: int | None = None) -> list[Victim]:
        """Remove pages until `num_pages` are out of each group, or all that no lock protects.

        `last_step`: end before the first that a later step may name; None: whoever names them.

        What other than WINDOW groups need comes first: the first leaf in eviction order loses its
        last pages, in all groups. Once it has none left it is gone, and its parent may be a leaf.
        What WINDOW groups still need after that they lose alone, in the order of `WindowPages`.
        """
        return self._eviction.evict(num_pages, math.inf if last_step is None else last_step)

    def flush_some(self, walk: FlushWalk, num_nodes: int) -> list[Victim]:
        """Remove some of what no lock protects: so many nodes, or pages of windows."""
        return self._eviction.flush_some(walk, num_nodes)

    def check(self) -> None:
        """Raise AccountingError, with the figures, unless every invariant of the tree holds."""
        nodes = self.forest.check()
        self._eviction.check(nodes)
        if self._windows is not None:
            self._windows.check(nodes)
        if (num_found := sum(root.num_locks for root in self.forest.roots)) != self.num_locks:
            raise AccountingError(f"locks: counted {self.num_locks}, found {num_found}")

    def _locked_node(self, lock: Lock) -> RadixNode:
        if lock.node is None:
            raise AccountingError(
                f"a lock of {lock.num_pages} pages is used after it was given back"
            )
        return lock.node

    def _containing_node(self, match: Match, num_pages: int) -> RadixNode:
        """The node that now holds the last of the first pages of a match."""
        node = match.node
        while node is not None and node.start >= num_pages:
            node = node.parent
        if node is None or node.end < num_pages:
            raise AccountingError(
                f"a match of {match.num_pages} pages is used after some of them were evicted"
            )
        return node

    def _end_node(self, match: Match, num_pages: int, now_s: float) -> RadixNode:
        """The node that ends with so many pages of a match, split off if needed; a root if none."""
        if num_pages:
            node = self._containing_node(match, num_pages)
            if node.end == num_pages:
                return node
            return self._eviction.split(node, num_pages)

        identity, last = match.last_key, match.node
        while last is not None:
            identity, last = last.last_key, last.parent
        return self.forest.root(identity, now_s)

    def _descend(self, node: RadixNode, packed_tokens: bytes, num_pages: int) -> list[RadixNode]:
        """Lock the nodes below `node` that hold the first of `num_pages` pages.

        The last one is split if it holds others, too.
        """
        page_bytes = self._page_bytes
        path: list[RadixNode] = []
        first = node.end
        while node.end - first < num_pages:
            offset = (node.end - first) * page_bytes
            child = node.children.get(packed_tokens[offset : offset + page_bytes])
            if child is None:
                break

            end = child.start + count_shared_pages(child.edge, packed_tokens, offset, page_bytes)
            node = child if end == child.end else self._eviction.split(child, end)
            self._eviction.lock(node)
            path.append(node)
        return path

    def _append(self, node: RadixNode, run: RadixNode) -> RadixNode:
        """Add `run`, locked once, behind a locked node. Returns the node that ends with it."""
        self._eviction.note_new(run.num_pages)
        if node.may_grow(run.segment):
            self._eviction.grow(node, run)
            return node
        self.forest.attach(node, run)
        if self._windows is not None:
            self._windows.reshape(node)
        self._eviction.lock(run)
        return run
