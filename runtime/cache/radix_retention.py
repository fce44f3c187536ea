"""The users of a radix tree's pages, and what is known of when they use them again."""

from collections import OrderedDict

from raydix.ids import UserId
from raydix.runtime.cache.radix_eviction import RadixEviction
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import RadixNode
from raydix.runtime.cache.standing import Kept, Standing

_MAX_USERS = 65_536


class RadixRetention:
    """Owns: where the last request of each session ended, of those that were served of late.

    A hint concerns the nodes above that place which no other user has shared: their pages alone
    are of no use once the session has ended.
    """

    def __init__(self, eviction: RadixEviction, forest: RadixForest) -> None:
        self._eviction = eviction
        self._forest = forest
        self._last_nodes: OrderedDict[UserId, RadixNode] = OrderedDict()

    def advance(self, now_s: float) -> None:
        """Note that it is so late."""
        self._eviction.advance(now_s)

    def claim(self, node: RadixNode, user: UserId) -> None:
        """Note that a user has used this node, the last one of its chain, and all above it."""
        current: RadixNode | None = node
        while current is not None and current.parent is not None:
            current.claim(user)
            current = current.parent

    def end_use(self, node: RadixNode, user: UserId) -> None:
        """Note that a request has ended with this node, the last one of its chain.

        What of it no other user has used can be retained from now on. Whoever gives no hint, now or
        later, had better `claim`: there are more requests than sessions.
        """
        self.claim(node, user)
        # What an earlier hint has kept of another branch is kept no longer.
        self.end_hint(user)
        self._last_nodes[user] = node
        self._last_nodes.move_to_end(user)
        while len(self._last_nodes) > _MAX_USERS:
            # Nobody would find later what its hint has kept.
            self.end_hint(next(iter(self._last_nodes)))
            self._last_nodes.popitem(last=False)

    def end_hint(self, user: UserId) -> None:
        """Forget what is known of the next use of what a user alone has used."""
        node = self._last_nodes.get(user)
        while node is not None and node.parent is not None:
            if node.standing is not None and node.user == user and node.num_pages:
                self._eviction.stand(node, None)
            node = node.parent

    def kept_users(self, now_s: float) -> set[UserId]:
        """The users of nodes that are kept by a hint; O(nodes)."""
        kept: set[UserId] = set()
        for node in self._forest:
            standing = node.standing
            if isinstance(standing, Kept) and standing.until_s > now_s and node.user is not None:
                kept.add(node.user)
        return kept

    def retain(self, user: UserId, standing: Standing) -> int:
        """Change the standing of what a user alone has used; returns how many pages that is.

        What is in use stays as it is.
        """
        node = self._last_nodes.get(user)
        num_pages = 0
        while node is not None and node.parent is not None:
            # A node that was evicted has no page any more, but those above it may be there.
            if node.user == user and not node.num_locks and node.num_pages:
                self._eviction.stand(node, standing)
                num_pages += node.num_pages
            node = node.parent
        return num_pages
