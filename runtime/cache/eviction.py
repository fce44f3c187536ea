"""Which leaf of a radix tree goes first: the order that a policy makes."""

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import EvictionKey, PolicyKey, eviction_key
from raydix.runtime.cache.radix_node import RadixNode
from raydix.runtime.cache.sorted_entries import OrderEntry, OrderPlace, SortedEntries
from raydix.runtime.cache.standing import Away


class EvictionOrder:
    """Owns: the order in which one tree's evictable leaves go, and which nodes were inspected.

    Smallest policy key first, then first come. The inspected leaves and the others wait in a queue
    each: the smaller of the two first entries goes next, and the first of the others is inspected
    next, wherever newcomers enter. A node whose children are all inspected goes once they are gone,
    so it is inspected with the last of them.
    """

    def __init__(self, policy_key: PolicyKey) -> None:
        self.num_inspected_pages = 0
        self._policy_key = policy_key
        self._now_s = 0.0
        self._inspected = SortedEntries[RadixNode]()
        self._others = SortedEntries[RadixNode]()
        self._last_ticket = 0

    def add(self, node: RadixNode) -> None:
        """Enter a leaf, or move one that was used to where its key now belongs.

        One that was inspected before it became a leaf stays so, if it goes before all others.
        """
        if node.ticket:
            self.discard(node)

        self._last_ticket += 1
        node.enter_order(self._last_ticket, self._key_of(node))
        entry, other = _entry_of(node), self._others.first()
        if node.is_inspected and (other is None or entry < other):
            self._inspected.add(entry)
        else:
            self.note_use(node)
            self._others.add(entry)

    def discard(self, node: RadixNode) -> None:
        """Take out a leaf that is in."""
        queue = self._inspected if node.is_inspected else self._others
        queue.remove(_entry_of(node))
        self.note_use(node)
        node.leave_order()

    def note_use(self, node: RadixNode) -> None:
        """Note that a node is used, or goes later than others: it is to be inspected anew."""
        if node.is_inspected:
            self.num_inspected_pages -= node.num_pages
            node.end_inspection()

    def advance(self, now_s: float) -> None:
        """Note that it is so late: leaves that are to be used again soon go later by now."""
        self._now_s = now_s

    def first(self) -> RadixNode | None:
        """The leaf that goes next."""
        while (node := self._first_entered()) is not None:
            # What comes back goes the later the sooner that is, so nothing behind has overtaken it.
            if not isinstance(node.standing, Away) or self._key_of(node) == node.eviction_key:
                return node
            self.add(node)
        return None

    def _first_entered(self) -> RadixNode | None:
        inspected, other = self._inspected.first(), self._others.first()
        if inspected is None or other is None:
            entry = inspected or other
        else:
            entry = min(inspected, other)
        return None if entry is None else entry[2]

    def _key_of(self, node: RadixNode) -> EvictionKey:
        if node.standing is None:
            return self._policy_key(node, node.last_use_s)
        return eviction_key(self._policy_key, node, node.standing, self._now_s)

    def first_from(self, place: OrderPlace | None) -> RadixNode | None:
        """The first leaf of the order at this place or behind it; None: the first of all."""
        if place is None:
            return self.first()
        entries = [queue.first_from(place) for queue in (self._inspected, self._others)]
        entry = min([entry for entry in entries if entry is not None], default=None)
        return None if entry is None else entry[2]

    def inspect(self) -> list[RadixNode]:
        """Inspect the first leaf that was not inspected since it entered. It stays in.

        Returns it behind the nodes above that go after it and were not inspected, heads first.
        """
        entry = self._others.first()
        if entry is None:
            return []

        self._others.remove(entry)
        self._inspected.add(entry)
        found = [entry[2]]
        found[0].note_inspection()
        while (parent := found[-1].parent) is not None and parent.is_to_be_inspected:
            parent.note_inspection()
            found.append(parent)

        self.num_inspected_pages += sum(node.num_pages for node in found)
        return found[::-1]

    def inspect_ahead(self, num_pages: int) -> Iterator[list[RadixNode]]:
        """Inspect what holds the first `num_pages` pages to go; yields what was not before.

        All that goes before an inspected leaf is inspected, too, because newcomers may go first.
        """
        while self.num_inspected_pages < num_pages or self._is_overtaken():
            nodes = self.inspect()
            if not nodes:
                return
            yield nodes

    def note_cut(self, node: RadixNode, num_pages: int) -> None:
        """Note that a leaf is to lose its last `num_pages` pages; it keeps its place."""
        if node.is_inspected:
            self.num_inspected_pages -= num_pages

    def check(self, leaves: Set[RadixNode], nodes: Sequence[RadixNode]) -> None:
        """Raise AccountingError unless just these leaves are in, sorted, and of all nodes those
        that were inspected are counted, and no lock holds them.
        """
        for queue, is_inspected in ((self._inspected, True), (self._others, False)):
            queue.check()
            for key, ticket, node in queue:
                place = (node.eviction_key, node.ticket, node.is_inspected)
                if place != (key, ticket, is_inspected):
                    raise AccountingError(
                        f"a leaf of {node.num_pages} pages disagrees with its place in the "
                        f"eviction order"
                    )

        found = {node for _, _, node in (*self._inspected, *self._others)}
        if found != leaves:
            raise AccountingError(
                f"the eviction order holds {len(found)} leaves; expected {len(leaves)} unlocked "
                f"ones"
            )

        inspected = [node for node in nodes if node.is_inspected]
        if any(node.num_locks for node in inspected):
            raise AccountingError("a node that is locked counts as one that goes next")

        per_parent = Counter(node.parent for node in inspected)
        if any(node.num_inspected_children != per_parent[node] for node in nodes):
            raise AccountingError("a node has another number of inspected children than it counts")

        num_found = sum(node.num_pages for node in inspected)
        num_counted = self.num_inspected_pages
        if num_found != num_counted:
            raise AccountingError(f"inspected pages: counted {num_counted}, found {num_found}")

    def _is_overtaken(self) -> bool:
        """Whether a leaf that was not inspected goes before one that was."""
        last, other = self._inspected.last(), self._others.first()
        return last is not None and other is not None and other < last


def _entry_of(node: RadixNode) -> OrderEntry[RadixNode]:
    return node.eviction_key, node.ticket, node
