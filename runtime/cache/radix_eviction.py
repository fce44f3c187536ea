"""Which pages of a radix tree are locked, and in which order the others go."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.chain_needs import ChainNeeds
from raydix.runtime.cache.eviction import EvictionOrder
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.radix_flush import FlushWalk
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import RadixNode, Victim, use_path
from raydix.runtime.cache.radix_windows import RadixWindows
from raydix.runtime.cache.reuse_chances import ReuseChances, kind_of
from raydix.runtime.cache.standing import Standing
from raydix.runtime.config.policies import EvictionPolicy


class RadixEviction:
    """Owns: how many pages of a forest are locked, and the order of the leaves that are not.

    A leaf loses its last pages first, in all KV groups at once, so that a chain loses its tail
    before its head. WINDOW groups alone may lose pages anywhere (see `RadixWindows`); a leaf of
    which that leaves nothing to any group goes.
    """

    def __init__(
        self,
        forest: RadixForest,
        windows: RadixWindows | None,
        policy: EvictionPolicy,
        reaches: Sequence[int | None],
    ) -> None:
        self.num_locked_pages = 0
        """Locked pages of every group but the WINDOW ones, over all paths."""
        self._forest = forest
        self._windows = windows
        self._order = EvictionOrder(EVICTION_POLICIES[policy])
        self._chances = ReuseChances() if policy is EvictionPolicy.REUSE else None
        self._needs = ChainNeeds() if policy is EvictionPolicy.TLRU else None
        self._num_groups = len(reaches)
        self._whole = [group for group, reach in enumerate(reaches) if reach is None]
        """The groups that lose no page without its leaf: FULL and LATENT ones."""

    def lock(self, node: RadixNode) -> None:
        """Lock a node, to protect its pages. The caller locks those above it, too."""
        if node.lock():
            self.num_locked_pages += node.num_pages
            if node.ticket:
                self._order.discard(node)
            else:
                self._order.note_use(node)

    def lock_path(self, node: RadixNode, now_s: float) -> int:
        """Lock a node and all above it for a request that uses them, and count a hit of each.

        Returns how many requests have ended before in this chain, as far as is known.
        """
        chances = self._chances
        if chances is not None:
            chances.begin_request(now_s)
        if self._needs is not None:
            self._needs.begin_request()
        current: RadixNode | None = node
        while current is not None:
            if chances is not None and current.parent is not None:
                chances.used_again(current.kind, current.last_use_s, current.num_pages)
            self.lock(current)
            current.use(now_s)
            current = current.parent
        return 0 if node.parent is None else node.turn + 1

    def turn_of(self, keys: bytes, turn: int) -> int:
        """Note that a request brings pages, in turn `turn` of its chain as far as the tree knows.

        Returns the turn that it is in: the pages may be known from before.
        """
        if self._chances is None:
            return turn
        former = self._chances.come_back(PageKey(keys[:KEY_BYTES]))
        return turn if former is None else max(turn, former + 1)

    def use_path(self, node: RadixNode, priority: int, now_s: float, turn: int) -> None:
        """Count a use of a node and of all above, by a request in its chain's turn `turn`."""
        use_path(node, priority, now_s)
        if self._needs is not None:
            self._spare_ends(node, self._needs)
        chances = self._chances
        if chances is None:
            return
        current: RadixNode | None = node
        while current is not None:
            kind = kind_of(turn, node.end, current.num_hits)
            current.value(kind, chances.worth_s(kind))
            current = current.parent

    def _spare_ends(self, node: RadixNode, needs: ChainNeeds) -> None:
        """Note of a node and of all above which of them a next prompt of their chains needs."""
        current: RadixNode | None = node
        while current is not None:
            current.reach(node.end)
            current.spare(num_needed=needs.num_needed(current.deepest))
            current = current.parent

    def note_new(self, num_pages: int) -> None:
        """Note that a request has brought pages that were not there."""
        if self._needs is not None:
            self._needs.brought(num_pages)

    def unlock_path(self, node: RadixNode, last_step: int) -> None:
        """Take a lock off a node and off all nodes above it, once it pins no window any more."""
        current: RadixNode | None = node
        while current is not None:
            if current.unlock(last_step):
                self.num_locked_pages -= current.num_pages
            current = current.parent
        self._settle(node)
        if not self._whole:
            self._remove_hollow(node)

    def touch(self, node: RadixNode) -> None:
        """Give a node that has been used its new place in the order, if it waits there."""
        if node.ticket:
            self._order.add(node)
        else:
            self._order.note_use(node)

    def advance(self, now_s: float) -> None:
        """Note that it is so late, for what is expected to be used again at some time."""
        self._order.advance(now_s)

    def stand(self, node: RadixNode, standing: Standing | None) -> None:
        """Note what is known of the next use of a node that no lock holds."""
        node.stand(standing)
        if node.ticket:
            self._order.add(node)

    def grow(self, leaf: RadixNode, run: RadixNode) -> None:
        """Append the pages of `run` to a locked leaf."""
        self._forest.grow(leaf, run)
        self.num_locked_pages += run.num_pages

    def split(self, node: RadixNode, end: int) -> RadixNode:
        """Part a node; the lower part keeps its place in the order. Returns the upper part.

        A lower part goes at once if no group holds a page of it and nothing else keeps it.
        """
        upper = self._forest.split(node, end)
        if self._windows is not None:
            self._windows.split(upper, node)
        if not self._whole and node.ticket and node.is_hollow:
            self._remove(node)
        return upper

    def inspect_ahead(self, num_pages: int) -> Iterator[list[RadixNode]]:
        """Look at the next `num_pages` pages to be evicted; yields those not inspected before."""
        return self._order.inspect_ahead(num_pages)

    def unlocked(self) -> Iterator[Victim]:
        """All pages that no lock protects, heads of chains before their tails."""
        return (node.as_victim() for node in self._forest if not node.num_locks)

    def evict(self, num_pages: Sequence[int], last_step: float) -> list[Victim]:
        """Remove pages in order until so many are out of each group, or all that can go.

        Ends before the first that a step after `last_step` may name.
        """
        # A leaf's pages leave all groups that need whole prefixes at once.
        num_lacking = 0
        for group in self._whole:
            if num_pages[group] > num_lacking:
                num_lacking = num_pages[group]

        victims: list[Victim] = []
        while (
            num_lacking > 0 and (leaf := self._first()) is not None and leaf.last_step <= last_step
        ):
            is_enough = leaf.num_pages > num_lacking
            self._note_drop(leaf, min(leaf.num_pages, num_lacking))
            victim = self._cut(leaf, num_lacking) if is_enough else self._remove(leaf)
            num_lacking -= victim.num_pages
            victims.append(victim)

        if self._windows is not None:
            self._evict_windows(self._windows, num_pages, last_step, victims)
        return victims

    def _first(self) -> RadixNode | None:
        """The leaf that goes next, by what its kind is worth now."""
        while (leaf := self._order.first()) is not None and self._chances is not None:
            worth_s = self._chances.worth_s(leaf.kind)
            if worth_s <= leaf.worth_s:
                break
            leaf.value(leaf.kind, worth_s)
            self._order.add(leaf)
        return leaf

    def _note_drop(self, leaf: RadixNode, num_pages: int) -> None:
        if self._chances is None:
            return
        self._chances.dropped(leaf.kind, leaf.last_use_s, num_pages)
        if num_pages == leaf.num_pages:
            key = PageKey(leaf.keys[:KEY_BYTES])
            self._chances.gone(key, leaf.kind, leaf.last_use_s, num_pages)

    def flush_some(self, walk: FlushWalk, num_nodes: int) -> list[Victim]:
        """Take a walk so many nodes further, or so many pages of windows; returns what went."""
        victims: list[Victim] = []
        if walk.windows_left is not None:
            wanted = [min(num_nodes, left) for left in walk.windows_left]
            if self._windows is not None:
                self._evict_windows(self._windows, wanted, math.inf, victims)
            walk.note_windows(wanted if victims else [0] * len(wanted))
            return victims

        while num_nodes > 0 and walk.windows_left is None:
            leaf = self._order.first_from(walk.place)
            if leaf is None:
                walk.reach_end([self._num_unpinned(group) for group in range(self._num_groups)])
                continue

            walk.go_past((leaf.eviction_key, leaf.ticket + 1))
            num_nodes -= 1
            node: RadixNode | None = leaf
            while node is not None and node.ticket and node.last_use_s <= walk.used_until_s:
                victims.append(self._remove(node))
                walk.note_drop()
                node = node.parent
                num_nodes -= 1
                if num_nodes <= 0:
                    break
        return victims

    def _num_unpinned(self, group: int) -> int:
        window = None if self._windows is None else self._windows.group(group)
        return 0 if window is None else window.num_cached - window.num_locked

    def _evict_windows(
        self,
        windows: RadixWindows,
        num_pages: Sequence[int],
        last_step: float,
        victims: list[Victim],
    ) -> None:
        """Add to `victims` what they leave lacking of each WINDOW group."""
        for group in windows.groups:
            num_out = sum(int(np.count_nonzero(victim.page_ids[group])) for victim in victims)
            for node, victim in windows.evict(group, num_pages[group] - num_out, last_step):
                victims.append(victim)
                victims += self._remove_hollow(node)

    def _cut(self, leaf: RadixNode, num_pages: int) -> Victim:
        # The leaf keeps its place, so that eviction goes on with it.
        self._order.note_cut(leaf, num_pages)
        victim = self._forest.cut(leaf, num_pages)
        if self._windows is not None:
            self._windows.reshape(leaf)
        return victim

    def _remove(self, leaf: RadixNode) -> Victim:
        assert leaf.parent is not None, "a root is never evictable"
        self._order.discard(leaf)
        if self._windows is not None:
            self._windows.forget(leaf)
        victim = self._forest.remove(leaf)
        if self._windows is not None:
            self._windows.reshape(leaf.parent)
        self._settle(leaf.parent)
        return victim

    def _remove_hollow(self, leaf: RadixNode) -> list[Victim]:
        """Remove an evictable leaf if no group holds a page of it, and those above it likewise."""
        removed = []
        node: RadixNode | None = leaf
        while node is not None and node.ticket and node.is_hollow:
            removed.append(self._remove(node))
            node = node.parent
        return removed

    def _settle(self, node: RadixNode) -> None:
        """Let a node without children and locks go in its turn; a root goes at once."""
        if node.children or node.num_locks:
            return
        if node.parent is None:
            self._forest.drop_root(node)
        else:
            self._order.add(node)

    def check(self, nodes: list[RadixNode]) -> None:
        """Raises AccountingError unless this agrees with the nodes of the forest."""
        num_found = sum(node.num_pages for node in nodes if node.num_locks)
        if num_found != self.num_locked_pages:
            raise AccountingError(
                f"locked pages: counted {self.num_locked_pages}, found {num_found}"
            )
        leaves = {node for node in nodes if not node.children and not node.num_locks}
        if any(leaf.is_hollow for leaf in leaves):
            raise AccountingError("a leaf that no lock holds has no page in any group")
        self._order.check(leaves, nodes)
        if self._chances is not None:
            self._chances.check()
