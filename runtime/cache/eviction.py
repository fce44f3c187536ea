"""Which leaf of a radix tree goes first: one key function per policy, and the order that they put leaves in."""

import heapq
from collections.abc import Callable
from itertools import pairwise

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

OrderEntry = tuple[EvictionKey, int, RadixNode]


class EvictionOrder:
    """Owns: the order in which the evictable leaves of one tree go. Smallest policy key first, then first come.

    Most leaves wait in a sorted run, whose end is popped in constant time; newcomers wait in a heap, which becomes the
    next run when this one is used up. (Sifting through one large heap cost three times as much: its entries are cold.)
    An entry counts only while its node carries its ticket; outdated ones are skipped when they surface, and never
    outnumber the live ones by more than a constant.
    """

    _MAX_SPARE_ENTRIES = 64

    def __init__(self, policy_key: PolicyKey) -> None:
        self._policy_key = policy_key
        self._run: list[OrderEntry] = []  # largest first
        self._newcomers: list[OrderEntry] = []  # a heap
        self._last_ticket = 0
        self._num_live = 0

    def add(self, node: RadixNode) -> None:
        """Enter a leaf, or move it to where its key now belongs."""
        if not node.ticket:
            self._num_live += 1
        self._last_ticket += 1
        node.ticket = self._last_ticket
        heapq.heappush(self._newcomers, (self._policy_key(node), node.ticket, node))
        self.compact()

    def discard(self, node: RadixNode) -> None:
        """Take out a node that is in."""
        node.ticket = 0
        self._num_live -= 1
        self.compact()

    def pop(self) -> OrderEntry | None:
        """Take the first leaf out; None if there is none. Call `compact` after the last of a series."""
        while self._run or self._newcomers:
            run, newcomers = self._run, self._newcomers
            if not run:
                self._run = sorted((entry for entry in newcomers if _is_live(entry)), reverse=True)
                self._newcomers = []
                continue
            entry = heapq.heappop(newcomers) if newcomers and newcomers[0] < run[-1] else run.pop()
            node = entry[2]
            if node.ticket == entry[1]:
                node.ticket = 0
                self._num_live -= 1
                return entry
        return None

    def restore(self, entry: OrderEntry) -> None:
        """Undo the `pop` that returned `entry`."""
        entry[2].ticket = entry[1]
        self._num_live += 1
        heapq.heappush(self._newcomers, entry)

    def compact(self) -> None:
        """Drop the outdated entries once they are too many."""
        if len(self._run) + len(self._newcomers) > 2 * self._num_live + self._MAX_SPARE_ENTRIES:
            self._run = [entry for entry in self._run if _is_live(entry)]
            self._newcomers = [entry for entry in self._newcomers if _is_live(entry)]
            heapq.heapify(self._newcomers)

    def check(self, num_expected: int) -> None:
        """Raise AccountingError unless `num_expected` leaves are in, in order, and few outdated entries beside them."""
        num_entries = len(self._run) + len(self._newcomers)
        num_found = sum(_is_live(entry) for entry in self._run + self._newcomers)
        max_entries = 2 * self._num_live + self._MAX_SPARE_ENTRIES
        if not num_found == self._num_live == num_expected or num_entries > max_entries:
            raise AccountingError(
                f"the eviction order counts {self._num_live} leaves, holds {num_found} in {num_entries} entries; "
                f"expected {num_expected} in at most {max_entries}"
            )
        if any(later > earlier for earlier, later in pairwise(self._run)):
            raise AccountingError(f"the eviction order's run of {len(self._run)} entries is not sorted")


def _is_live(entry: OrderEntry) -> bool:
    return entry[2].ticket == entry[1]
