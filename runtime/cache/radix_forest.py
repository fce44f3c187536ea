"""The nodes of a radix tree: one root per identity, and the page-granular runs below it."""

from collections.abc import Iterator, Sequence

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.radix_check import collect_nodes
from raydix.runtime.cache.radix_edges import count_shared_pages
from raydix.runtime.cache.radix_node import RadixNode, Victim, cut_tail, new_root, split_node


class RadixForest:
    """Owns: which GPU pages hold which prefixes of one L1, and how many. Knows no policy."""

    def __init__(self, *, page_bytes: int, reaches: Sequence[int | None]) -> None:
        self.num_cached_pages = 0
        """Cached pages of every group but the WINDOW ones, over all paths."""
        self.num_nodes = 0
        self._page_bytes = page_bytes
        self._reaches = tuple(reaches)
        self._roots: dict[PageKey, RadixNode] = {}

    @property
    def roots(self) -> tuple[RadixNode, ...]:
        """The roots, where chains start: one per identity that has pages or locks."""
        return tuple(self._roots.values())

    def __iter__(self) -> Iterator[RadixNode]:
        """All nodes but the roots, each before those below it."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            pending.extend(node.children.values())

    def runs(self) -> Iterator[tuple[PageKey, RadixNode]]:
        """All nodes but the roots, each with its identity, and before those below it."""
        for identity, root in self._roots.items():
            pending = list(root.children.values())
            while pending:
                node = pending.pop()
                yield identity, node
                pending.extend(node.children.values())

    def find(self, identity: PageKey, packed_tokens: bytes) -> tuple[list[RadixNode], int]:
        """The nodes that hold the longest cached prefix, from the first one down, and its pages."""
        page_bytes = self._page_bytes
        node = self._roots.get(identity)
        path: list[RadixNode] = []
        offset = 0
        while node is not None:
            node = node.children.get(packed_tokens[offset : offset + page_bytes])
            if node is None:
                break
            path.append(node)

            # The first page agrees, so the walk ends in this node or goes on from its end.
            edge = node.edge
            if not packed_tokens.startswith(edge, offset):
                offset += count_shared_pages(edge, packed_tokens, offset, page_bytes) * page_bytes
                break
            offset += len(edge)
        return path, offset // page_bytes

    def root(self, identity: PageKey, now_s: float) -> RadixNode:
        """The root of an identity, made if there is none."""
        root = self._roots.get(identity)
        if root is None:
            root = self._roots[identity] = new_root(identity, len(self._reaches), now_s)
        return root

    def drop_root(self, root: RadixNode) -> None:
        """Forget an identity whose chains are gone."""
        del self._roots[root.last_key]

    def attach(self, parent: RadixNode, run: RadixNode) -> None:
        """Add a node below another."""
        parent.attach(run)
        self.num_nodes += 1
        self.num_cached_pages += run.num_pages

    def grow(self, leaf: RadixNode, run: RadixNode) -> None:
        """Append the pages of a node that is not attached to a leaf."""
        leaf.grow(run)
        self.num_cached_pages += run.num_pages

    def split(self, node: RadixNode, end: int) -> RadixNode:
        """Part a node at a page that it holds; returns the new upper part."""
        self.num_nodes += 1
        return split_node(node, end, self._page_bytes)

    def cut(self, leaf: RadixNode, num_pages: int) -> Victim:
        """Take the last pages off a leaf that keeps some."""
        self.num_cached_pages -= num_pages
        return cut_tail(leaf, num_pages, self._page_bytes)

    def remove(self, leaf: RadixNode) -> Victim:
        """Unlink a leaf."""
        victim = leaf.leave()
        self.num_nodes -= 1
        self.num_cached_pages -= victim.num_pages
        return victim

    def check(self) -> list[RadixNode]:
        """All nodes. Raises AccountingError unless they are well formed and counted."""
        nodes = collect_nodes(self._roots, self._page_bytes, self._reaches)
        found = (len(nodes), sum(node.num_pages for node in nodes))
        counted = (self.num_nodes, self.num_cached_pages)
        if found != counted:
            raise AccountingError(f"nodes, cached pages: counted {counted}, found {found}")
        return nodes
