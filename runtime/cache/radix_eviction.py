"""Which pages of a radix tree are locked, and in which order the others go."""

from collections.abc import Iterator

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction import EvictionOrder, PolicyKey
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import RadixNode, Victim


class RadixEviction:
    """Owns: how many pages of a forest are locked, and the order of the leaves that are not.

    A page goes in all KV groups at once. A leaf loses its last pages first, so that in every group
    a chain loses its tail before its head.
    """

    def __init__(self, forest: RadixForest, policy_key: PolicyKey) -> None:
        self.num_locked_pages = 0
        self._forest = forest
        self._order = EvictionOrder(policy_key)

    @property
    def num_inspected_pages(self) -> int:
        """Pages of leaves that were inspected and not evicted, locked or touched since."""
        return self._order.num_inspected_pages

    def lock(self, node: RadixNode) -> None:
        """Protect a node's pages. The caller locks those above it, too."""
        if node.lock():
            self.num_locked_pages += node.num_pages
            if node.ticket:
                self._order.discard(node)

    def unlock_path(self, node: RadixNode) -> None:
        """Take a lock off a node and off all above it."""
        current: RadixNode | None = node
        while current is not None:
            if current.unlock():
                self.num_locked_pages -= current.num_pages
            current = current.parent
        self._settle(node)

    def touch(self, node: RadixNode) -> None:
        """A node that may wait in the order has been used."""
        if node.ticket:
            self._order.add(node)

    def grow(self, leaf: RadixNode, run: RadixNode) -> None:
        """Append the pages of `run` to a locked leaf."""
        self._forest.grow(leaf, run)
        self.num_locked_pages += run.num_pages

    def split(self, node: RadixNode, end: int) -> RadixNode:
        """Part a node; the lower part keeps its place in the order. Returns the upper part."""
        self._order.note_loss(node, end - node.start)
        return self._forest.split(node, end)

    def peek(self) -> Victim | None:
        """The whole leaf that `evict` would begin with."""
        leaf = self._order.first()
        return None if leaf is None else _all_of(leaf)

    def inspect(self) -> Victim | None:
        """The next whole leaf that was not inspected yet."""
        leaf = self._order.inspect()
        return None if leaf is None else _all_of(leaf)

    def inspect_ahead(self, num_pages: int) -> Iterator[Victim]:
        """Inspect what holds the next `num_pages` pages to go. Yields what was not inspected."""
        return map(_all_of, self._order.inspect_ahead(num_pages))

    def unlocked(self) -> Iterator[Victim]:
        """All pages that no lock protects, heads of chains before their tails."""
        return (_all_of(node) for node in self._forest if not node.num_locks)

    def evict(self, num_pages: int) -> list[Victim]:
        """Remove pages in order until `num_pages` are out, or all that no lock protects."""
        victims: list[Victim] = []
        num_lacking = num_pages
        while num_lacking > 0 and (leaf := self._order.first()) is not None:
            is_enough = leaf.num_pages > num_lacking
            victim = self._cut(leaf, num_lacking) if is_enough else self._remove(leaf)
            num_lacking -= victim.num_pages
            victims.append(victim)
        return victims

    def _cut(self, leaf: RadixNode, num_pages: int) -> Victim:
        # The leaf keeps its place, so that eviction goes on with it.
        self._order.note_loss(leaf, num_pages)
        return self._forest.cut(leaf, num_pages)

    def _remove(self, leaf: RadixNode) -> Victim:
        assert leaf.parent is not None, "a root is never evictable"
        self._order.discard(leaf)
        victim = self._forest.remove(leaf)
        self._settle(leaf.parent)
        return victim

    def _settle(self, node: RadixNode) -> None:
        """A node has lost a child or a lock: one that has neither may go, a root goes at once."""
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
        self._order.check({node for node in nodes if not node.children and not node.num_locks})


def _all_of(node: RadixNode) -> Victim:
    return Victim(node.page_ids, node.keys)
