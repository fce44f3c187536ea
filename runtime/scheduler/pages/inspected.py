"""Pages that are evicted next, and were looked at for that."""

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.radix_node import RadixNode

NewPage = tuple[PageKey, tuple[int, ...]]
"""A page's key, and its id in each KV group; 0 where the group holds nothing of it."""


def inspected_page(node: RadixNode | None, short_key: bytes) -> NewPage | None:
    """The page of this key that was inspected with `node`; None: it has been used since."""
    while node is not None and node.parent is not None:
        start = node.keys.find(short_key)
        if start >= 0:
            page_ids = tuple([int(ids[start // KEY_BYTES]) for ids in node.page_ids])
            page = PageKey(node.keys[start : start + KEY_BYTES]), page_ids
            return page if node.is_inspected else None
        # The node has been split, and the page is in the upper part.
        node = node.parent
    return None
