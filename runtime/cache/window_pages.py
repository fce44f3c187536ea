"""The pages of one WINDOW group in a radix tree: which are pinned, and in which order others go.

First go inner pages, which are in no window that requests return to, the oldest first. Then go the
windows before places that requests return to: where a chain ends, where chains part, and where a
request ended that no later one has continued. They go in the order of the eviction policy, by their
nodes' state when a lock last reached them. A window loses its first pages first, as what follows in
the chain may still use the others.

Where a conversation went on, the window of the turn before is not kept: in a full pool it would
push out those of other conversations, whose turn comes sooner.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import PolicyKey
from raydix.runtime.cache.radix_node import RadixNode, Victim
from raydix.runtime.cache.sorted_entries import OrderEntry, SortedEntries


@dataclass(frozen=True, slots=True)
class _Share:
    """The pages that a group holds of one node."""

    num_open: int
    """The leading pages of the node that no lock pins, whether the group holds them or not."""
    num_inner: int
    """The unpinned pages that are held and lie before the window of the next place to return to."""
    num_ending: int
    """The unpinned pages that are held and lie in the window of the next place to return to."""
    num_locked: int
    """The pages that are held and pinned."""

    @property
    def num_held(self) -> int:
        """The number of pages of the node that the group holds."""
        return self.num_inner + self.num_ending + self.num_locked


_NOTHING = _Share(0, 0, 0, 0)


class WindowPages:
    """Owns: how many pages of one WINDOW group are cached and pinned, and which of them go next."""

    def __init__(self, group: int, reach: int, policy_key: PolicyKey) -> None:
        self.reach = reach
        """The number of pages of a window: before a lock's end they are pinned, and before a place
        to return to they go last.
        """
        self.num_cached = 0
        self.num_locked = 0
        self._group = group
        self._policy_key = policy_key

        self._shares: dict[RadixNode, _Share] = {}
        """The share of each node of which the group holds anything."""
        # Not a dict, which would look for its first entry among all that have left it.
        self._inner: OrderedDict[RadixNode, None] = OrderedDict()
        """Nodes with inner pages to lose, oldest first: a set in order."""
        self._order = SortedEntries[RadixNode]()
        """Nodes with pages to lose of a window that requests return to, in the policy's order."""
        self._entries: dict[RadixNode, OrderEntry[RadixNode]] = {}
        self._last_ticket = 0

    def refresh(self, node: RadixNode, nearest_end: int | None) -> None:
        """Take in that a node, or what locks pin of it, has changed. It keeps its place."""
        self._note(node, self._share_of(node, nearest_end))

    def renew(self, node: RadixNode, nearest_end: int | None) -> None:
        """Give a node its new place in the order: a lock that reaches it has come or gone."""
        self._leave_order(node)
        self.refresh(node, nearest_end)

    def forget(self, node: RadixNode) -> None:
        """Forget a node that has left the tree."""
        self._note(node, _NOTHING)

    def evict(self, num_pages: int, last_step: float) -> Iterator[tuple[RadixNode, Victim]]:
        """Take pages in order until so many are out, or all that no lock pins.

        Ends before the first that a step after `last_step` may name.
        """
        while num_pages > 0 and (node := self._first()) is not None and node.last_step <= last_step:
            share = self._shares[node]
            num_going = min(num_pages, share.num_inner or share.num_ending)
            # What is pinned comes last in a node.
            places = np.flatnonzero(node.page_ids[self._group])[:num_going]

            victim = node.give_up(self._group, int(places[0]), int(places[-1]) + 1)
            self._note(node, self._count(node, share.num_open))
            num_pages -= num_going
            yield node, victim

    def drop_inner(self, node: RadixNode, place: int) -> Victim | None:
        """Take one page, counted from its node's start, if it is held and inner."""
        share = self._shares.get(node, _NOTHING)
        num_before = min(share.num_open, node.num_pages - self._num_kept_of(node))
        if place >= num_before or not node.page_ids[self._group][place]:
            return None
        victim = node.give_up(self._group, place, place + 1)
        self._note(node, self._count(node, share.num_open))
        return victim

    def _first(self) -> RadixNode | None:
        """The node that loses pages next; None if no node can."""
        node = next(iter(self._inner), None)
        if node is None:
            entry = self._order.first()
            node = None if entry is None else entry[2]
        return node

    def _share_of(self, node: RadixNode, nearest_end: int | None) -> _Share:
        num_open = node.num_pages
        if nearest_end is not None:
            num_open = min(num_open, max(0, nearest_end - self.reach - node.start))
        return self._count(node, num_open)

    def _count(self, node: RadixNode, num_open: int) -> _Share:
        ids = node.page_ids[self._group]
        num_before = min(num_open, max(0, node.num_pages - self._num_kept_of(node)))
        return _Share(
            num_open,
            int(np.count_nonzero(ids[:num_before])),
            int(np.count_nonzero(ids[num_before:num_open])),
            int(np.count_nonzero(ids[num_open:])),
        )

    def _num_kept_of(self, node: RadixNode) -> int:
        """The last pages of a node that are in the window before the next place to return to."""
        num_kept = self.reach
        while num_kept > 0 and not node.is_return_point:
            (node,) = node.children.values()
            num_kept -= node.num_pages
        return num_kept

    def _note(self, node: RadixNode, share: _Share) -> None:
        former = self._shares.pop(node, _NOTHING)
        if share.num_held:
            self._shares[node] = share
        self.num_cached += share.num_held - former.num_held
        self.num_locked += share.num_locked - former.num_locked

        if share.num_inner:
            self._inner.setdefault(node)
        elif former.num_inner:
            del self._inner[node]

        if not share.num_ending:
            self._leave_order(node)
        elif node not in self._entries:
            self._last_ticket += 1
            entry = (self._policy_key(node, node.last_use_s), self._last_ticket, node)
            self._entries[node] = entry
            self._order.add(entry)

    def _leave_order(self, node: RadixNode) -> None:
        entry = self._entries.pop(node, None)
        if entry is not None:
            self._order.remove(entry)

    def check(self, nearest_ends: Mapping[RadixNode, int | None]) -> None:
        """Raises AccountingError unless this agrees with all nodes of the tree, with lock ends."""
        found = {node: self._share_of(node, end) for node, end in nearest_ends.items()}
        held = {node: share for node, share in found.items() if share.num_held}
        if held != self._shares:
            raise AccountingError(
                f"group {self._group}: pages of {len(held)} nodes; noted are {len(self._shares)}, "
                f"or other numbers of pages"
            )
        if any(share.num_locked and not node.num_locks for node, share in held.items()):
            raise AccountingError(f"group {self._group}: pages are pinned that no lock holds")

        num_found = (
            sum(share.num_held for share in held.values()),
            sum(share.num_locked for share in held.values()),
        )
        if num_found != (self.num_cached, self.num_locked):
            raise AccountingError(
                f"group {self._group}: cached, pinned pages: counted "
                f"{(self.num_cached, self.num_locked)}, found {num_found}"
            )
        self._check_order(held)

    def _check_order(self, held: Mapping[RadixNode, _Share]) -> None:
        self._order.check()
        waiting = list(self._order)
        inner = {node for node, share in held.items() if share.num_inner}
        ending = {node for node, share in held.items() if share.num_ending}
        if (
            self._inner.keys() != inner
            or self._entries.keys() != ending
            or sorted(self._entries.values()) != waiting
        ):
            raise AccountingError(
                f"group {self._group}: {len(self._inner)} and {len(waiting)} nodes wait to lose "
                f"pages; expected {len(inner)} and {len(ending)}"
            )
