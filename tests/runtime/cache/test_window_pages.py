"""What it costs to take pages of one WINDOW group."""

from collections import deque
from statistics import median
from time import perf_counter

from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.page_key import KEY_BYTES, root_key
from raydix.runtime.cache.radix_node import RadixNode, Segment, new_root
from raydix.runtime.cache.window_pages import WindowPages
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import int32_array

NUM_LEFT = 500


def window_pages(num_nodes: int) -> WindowPages:
    """A group that holds three pages of so many chains, one of them in no window."""
    root, page_ids = new_root(root_key(), 1, 0.0), (int32_array((1, 2, 3)),)
    pages = WindowPages(0, 2, EVICTION_POLICIES[EvictionPolicy.LRU])
    for _ in range(num_nodes):
        node = RadixNode(
            parent=root,
            edge=b"",
            first_page=b"",
            page_ids=page_ids,
            keys=bytes(3 * KEY_BYTES),
            start=0,
            end=3,
            segment=Segment.PROMPT,
            created_s=0.0,
            last_use_s=0.0,
        )
        pages.refresh(node, None)
    return pages


def evict_one(pages: WindowPages) -> float:
    """Returns how long it took."""
    started_s = perf_counter()
    deque(pages.evict(1, 0), maxlen=0)
    return perf_counter() - started_s


def test_an_eviction_costs_as_much_after_many_others_as_at_first() -> None:
    num_nodes = 60_000
    worn, fresh = window_pages(num_nodes), window_pages(NUM_LEFT)
    deque(worn.evict(num_nodes - NUM_LEFT, 0), maxlen=0)

    # By turns, so that whatever else slows this machine slows both.
    seconds = [(evict_one(worn), evict_one(fresh)) for _ in range(NUM_LEFT)]

    assert worn.num_cached == 2 * num_nodes
    in_worn, in_fresh = (median(each) for each in zip(*seconds, strict=True))
    assert in_worn < 2 * in_fresh
