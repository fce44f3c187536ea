"""The structural invariants of a radix tree."""

from collections.abc import Mapping, Sequence

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.radix_node import RadixNode


def collect_nodes(
    roots: Mapping[PageKey, RadixNode], page_bytes: int, reaches: Sequence[int | None]
) -> list[RadixNode]:
    """All nodes but the roots. Raises AccountingError unless they form trees and share no page."""
    nodes: list[RadixNode] = []
    for identity, root in roots.items():
        if (
            root.keys != identity
            or root.parent is not None
            or not (root.children or root.num_locks)
        ):
            raise AccountingError(
                f"root {identity.hex()} is misplaced, or has neither children nor locks"
            )

        pending = [root]
        while pending:
            node = pending.pop()
            check_node(node, page_bytes, len(reaches))
            nodes.extend(node.children.values())
            pending.extend(node.children.values())

    for group, reach in enumerate(reaches):
        page_ids = [page for node in nodes for page in node.page_ids[group].tolist() if page]
        if len(set(page_ids)) != len(page_ids):
            raise AccountingError(f"group {group}: a page is cached twice")
        if reach is None and len(page_ids) != sum(node.num_pages for node in nodes):
            raise AccountingError(f"group {group}: a chain lacks pages that all who use it need")
    return nodes


def check_node(node: RadixNode, page_bytes: int, num_groups: int) -> None:
    """Raise AccountingError unless a node agrees with itself and with its children."""
    if node.parent is not None:
        lengths = [len(ids) for ids in node.page_ids]
        num_bytes = (len(node.edge), len(node.keys))
        expected_bytes = (node.num_pages * page_bytes, node.num_pages * KEY_BYTES)
        if (
            node.num_pages < 1
            or lengths != [node.num_pages] * num_groups
            or num_bytes != expected_bytes
        ):
            raise AccountingError(
                f"pages [{node.start}, {node.end}) of a node have page ids {lengths}, token and "
                f"key bytes {num_bytes}"
            )

    children = node.children.values()
    num_child_locks = sum(child.num_locks for child in children)
    if node.num_locks < num_child_locks:
        raise AccountingError(f"a node has {node.num_locks} locks, its children {num_child_locks}")

    for first_page, child in node.children.items():
        is_keyed = child.first_page is first_page and child.edge[:page_bytes] == first_page
        if child.parent is not node or child.start != node.end or not is_keyed:
            raise AccountingError(
                f"the child at page {child.start} of a node that ends at {node.end} is misplaced"
            )
        if node.parent is not None and node.priority > child.priority:
            raise AccountingError(
                f"a prefix has priority {node.priority}, more important {child.priority} follows it"
            )
