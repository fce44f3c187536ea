"""Which leaf of a radix tree goes first: one key function per policy, and the order that they put leaves in."""

import heapq
from collections.abc import Callable

from raydix.errors import AccountingError
from raydix.runtime.cache.radix_node import RadixNode

EvictionKey = float | tuple[float, float]
PolicyKey = Callable[[RadixNode], EvictionKey]


def lru(node: RadixNode) -> EvictionKey:
    """Least recently used."""
    return node.last_use_s


def lfu(node: RadixNode) -> EvictionKey:
    """Fewest hits, then least recently used."""
    return node.num_hits, node.last_use_s


def fifo(node: RadixNode) -> EvictionKey:
    """Oldest."""
    return node.created_s


def mru(node: RadixNode) -> EvictionKey:
    """Most recently used."""
    return -node.last_use_s


def filo(node: RadixNode) -> EvictionKey:
    """Newest."""
    return -node.created_s


def slru(node: RadixNode) -> EvictionKey:
    """Least recently used, but leaves with two hits or more after all others."""
    return node.num_hits >= 2, node.last_use_s


def priority(node: RadixNode) -> EvictionKey:
    """Least important, which is the highest number, then least recently used."""
    return -node.priority, node.last_use_s


EVICTION_POLICIES: dict[str, PolicyKey] = {
    policy.__name__: policy for policy in (lru, lfu, fifo, mru, filo, slru, priority)
}

HeapEntry = tuple[EvictionKey, int, RadixNode]


class EvictionOrder:
    """Owns: the order in which the evictable leaves of one tree go. Smallest policy key first, then first come.

    A heap whose outdated entries are skipped when they surface: an entry counts only while its node carries its
    ticket. They never outnumber the live ones by more than a constant.
    """

    _MAX_SPARE_ENTRIES = 64

    def __init__(self, policy_key: PolicyKey) -> None:
        self._policy_key = policy_key
        self._heap: list[HeapEntry] = []
        self._last_ticket = 0
        self._num_live = 0

    def add(self, node: RadixNode) -> None:
        """Enter a leaf, or move it to where its key now belongs."""
        if not node.ticket:
            self._num_live += 1
        self._last_ticket += 1
        node.ticket = self._last_ticket
        heapq.heappush(self._heap, (self._policy_key(node), node.ticket, node))
        self._compact()

    def discard(self, node: RadixNode) -> None:
        """Take a node out, if it is in."""
        if node.ticket:
            node.ticket = 0
            self._num_live -= 1
            self._compact()

    def pop(self) -> HeapEntry | None:
        """Take the first leaf out; None if there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if entry[2].ticket == entry[1]:
                entry[2].ticket = 0
                self._num_live -= 1
                self._compact()
                return entry
        return None

    def restore(self, entry: HeapEntry) -> None:
        """Undo the `pop` that returned `entry`."""
        entry[2].ticket = entry[1]
        self._num_live += 1
        heapq.heappush(self._heap, entry)

    def check(self, num_expected: int) -> None:
        """Raise AccountingError unless `num_expected` leaves are in and the heap is no larger than it may be."""
        num_found = sum(entry[2].ticket == entry[1] for entry in self._heap)
        max_entries = 2 * self._num_live + self._MAX_SPARE_ENTRIES
        if not num_found == self._num_live == num_expected or len(self._heap) > max_entries:
            raise AccountingError(
                f"the eviction order counts {self._num_live} leaves, holds {num_found} in {len(self._heap)} entries; "
                f"expected {num_expected} in at most {max_entries}"
            )

    def _compact(self) -> None:
        if len(self._heap) > 2 * self._num_live + self._MAX_SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)
