"""Which pages of WINDOW groups a radix tree's locks pin, over all groups.

    node                         |------- A -------|---- B ----|      B is A's child
    page                          0  1  2  3  4  5  6  7  8  9
    lock that ends with A            [==============]                 reach 5, before page 6
    lock that ends with B                        [==============]     reach 5, before page 10
    pinned of A                      1  2  3  4  5                    its nearest end is 6
    pinned of A without the first                5                    its nearest end is 10

A lock that ends before page `end` pins the pages [end - reach, end) of a WINDOW group. All locks of
a node or below it end where the node does or behind it. What they pin of the node is therefore a
run up to the node's end, and the nearest of their ends alone says how long it is: no node need be
split where a window begins, and a window moves without a change to any node.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import PolicyKey
from raydix.runtime.cache.radix_node import RadixNode, Segment, Victim, join_page_ids
from raydix.runtime.cache.window_pages import WindowPages
from raydix.runtime.messages.arrays import Int32Array

LockEnds = Counter[int]
"""The number of locks that end before each page, for those that may pin pages of a node."""


class RadixWindows:
    """Owns: where the locks end that reach a node through some group's window.

    What that means for each WINDOW group is in its `WindowPages`.
    """

    def __init__(self, reaches: Sequence[int | None], policy_key: PolicyKey) -> None:
        self._groups = {
            group: WindowPages(group, reach, policy_key)
            for group, reach in enumerate(reaches)
            if reach is not None
        }
        self.groups = tuple(self._groups)
        """The WINDOW groups, of which there is at least one."""
        self._max_reach = max(pages.reach for pages in self._groups.values())
        self._lock_ends: dict[RadixNode, LockEnds] = {}

    def group(self, group: int) -> WindowPages | None:
        """The pages of a group, to be looked at; None if it is no WINDOW group."""
        return self._groups.get(group)

    def pin(self, node: RadixNode) -> None:
        """Count one more lock that ends with a node."""
        self._renew(self._add_end(node))

    def unpin(self, node: RadixNode, end: int) -> None:
        """Count one lock less, which ended before page `end`, in this node."""
        # Its session may go on from here, unlike one whose lock has moved to another node.
        node.come_back()
        self._renew(self._drop_end(node, end))
        self.reshape(node)

    def move_pin(self, node: RadixNode, end: int, new_node: RadixNode) -> None:
        """Move a lock that ended before page `end` of a node to another node, or to its new end."""
        # The new end comes before the old one goes, so that a node in both windows is renewed once.
        reached = [*self._add_end(new_node), *self._drop_end(node, end)]
        self._renew(dict.fromkeys(reached))
        self.reshape(new_node)
        if new_node is not node and new_node.segment is Segment.PROMPT:
            self._leave_behind(node)

    def _leave_behind(self, node: RadixNode) -> None:
        """Note that a session has gone on from a node's end with a new prompt.

        If the node is the only answer to its prompt, nor to that prompt's end. This is not called
        when an answer follows its own prompt: the same prompt may be asked again.
        """
        node.leave_behind()
        parent = node.parent
        if node.segment is Segment.OUTPUT and parent is not None:
            parent.leave_behind()
        self.reshape(node)

    def use(self, node: RadixNode, end: int) -> None:
        """Note a use of the window that ends before page `end` of a node, without a lock."""
        self._renew(self._reached(node, end))

    def heal(
        self, last: RadixNode, start: int, page_ids: tuple[Int32Array, ...]
    ) -> tuple[Int32Array, ...]:
        """Fill in what is lacking from page `start` to the end of `last`.

        Returns the pages that are there now.
        """
        runs = []
        node = last
        while node.parent is not None and node.end > start:
            num_before = max(0, start - node.start)
            run = slice(max(0, node.start - start), node.end - start)
            if node.fill_from(num_before, tuple([ids[run] for ids in page_ids])):
                self.refresh(node)
            runs.append(tuple([ids[num_before:] for ids in node.page_ids]))
            node = node.parent
        return join_page_ids(runs[::-1], last.end - start) if runs else page_ids

    def refresh(self, node: RadixNode) -> None:
        """Take in that a node has got or lost pages; its place in each group's order stays."""
        for pages in self._groups.values():
            pages.refresh(node, self._nearest_end(node))

    def reshape(self, node: RadixNode) -> None:
        """Take in that a node has got or lost its end or a child.

        So the windows before its end and before its start are counted anew.
        """
        near = [*self._reached(node, node.end)]
        if node.parent is not None:
            near += self._reached(node.parent, node.start)
        for each in dict.fromkeys(near):
            self.refresh(each)

    def split(self, upper: RadixNode, lower: RadixNode) -> None:
        """Take in that a node was parted: `lower` is what is left of it."""
        ends = self._lock_ends.get(lower, LockEnds())
        reaching = {end: num for end, num in ends.items() if end - self._max_reach < upper.end}
        if reaching:
            self._lock_ends[upper] = LockEnds(reaching)
        self.refresh(lower)
        self.reshape(upper)

    def forget(self, node: RadixNode) -> None:
        """Forget a node that has left the tree. No lock reaches it."""
        for pages in self._groups.values():
            pages.forget(node)

    def evict(
        self, group: int, num_pages: int, last_step: float
    ) -> Iterator[tuple[RadixNode, Victim]]:
        """Take pages of one WINDOW group, in order, as `WindowPages.evict` does."""
        return self._groups[group].evict(num_pages, last_step)

    def drop_inner(self, group: int, node: RadixNode, page: int) -> Victim | None:
        """Take one page of a group, as `WindowPages.drop_inner` does, if it lies in this node."""
        if not node.start <= page < node.end:
            return None
        return self._groups[group].drop_inner(node, page - node.start)

    def check(self, nodes: Sequence[RadixNode]) -> None:
        """Raises AccountingError unless this agrees with the nodes of the tree and their locks."""
        found: dict[RadixNode, LockEnds] = defaultdict(LockEnds)
        for node in nodes:
            num_ending = node.num_locks - sum(child.num_locks for child in node.children.values())
            for reached in self._reached(node, node.end) if num_ending else ():
                found[reached][node.end] += num_ending
        if found != self._lock_ends:
            raise AccountingError(
                f"locks reach {len(found)} nodes through windows; noted are "
                f"{len(self._lock_ends)}, or other ends"
            )

        for pages in self._groups.values():
            pages.check({node: self._nearest_end(node) for node in nodes})

    def _reached(self, node: RadixNode, end: int) -> Iterator[RadixNode]:
        """The nodes that hold pages of the window before page `end` of `node`, deepest first."""
        while node.parent is not None and node.end > end - self._max_reach:
            yield node
            node = node.parent

    def _add_end(self, node: RadixNode) -> list[RadixNode]:
        reached = list(self._reached(node, node.end))
        for each in reached:
            self._lock_ends.setdefault(each, LockEnds())[node.end] += 1
        return reached

    def _drop_end(self, node: RadixNode, end: int) -> list[RadixNode]:
        reached = list(self._reached(node, end))
        for each in reached:
            ends = self._lock_ends[each]
            ends[end] -= 1
            if not ends[end]:
                del ends[end]
            if not ends:
                del self._lock_ends[each]
        return reached

    def _nearest_end(self, node: RadixNode) -> int | None:
        ends = self._lock_ends.get(node)
        return None if ends is None else min(ends)

    def _renew(self, nodes: Iterable[RadixNode]) -> None:
        for node in nodes:
            nearest_end = self._nearest_end(node)
            for pages in self._groups.values():
                pages.renew(node, nearest_end)
