"""Take turns by common prefixes: the one that most waiting requests begin with goes first."""

import bisect
from collections.abc import Iterator, Sequence

from raydix.ids import PageKey, RequestId
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey, RequestOrder

_END = PageKey(b"")
"""The branch of those whose prompts have no further key."""


class _Node:
    """Owns: the requests whose prompts begin alike, and how they branch."""

    def __init__(self) -> None:
        self.requests = RequestOrder()
        """All of them, in their order."""
        self.branches: dict[PageKey, _Node] = {}
        self.order: list[tuple[int, OrderKey, PageKey]] = []
        """The branches by `branch_key`, each with its name."""

    def rank(self, name: PageKey) -> tuple[int, OrderKey, PageKey]:
        """The place of a branch that is not empty among its siblings."""
        requests = self.branches[name].requests
        return (*branch_key(len(requests), requests.first_entry()[0]), name)


def branch_key(num_requests: int, first: OrderKey) -> tuple[int, OrderKey]:
    """The smallest goes first: the branch with most requests, of equals the one that came first."""
    return -num_requests, first


class PrefixTurns:
    """Owns: some requests in an order that goes down the tree of their prefixes, heaviest first.

    Levels come first, so ageing bounds for how long a rare prefix can wait. A prompt is known by
    the keys of its first 1, 2, 4, ... pages, so a change touches as few nodes as a prompt has keys.
    """

    def __init__(self) -> None:
        self._all = RequestOrder()
        self._roots: dict[int, _Node] = {}
        """The tree of each level."""
        self._paths: dict[RequestId, tuple[int, tuple[PageKey, ...]]] = {}
        """The level of each request, and the branches that lead to it."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: RequestId) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._all)

    def put(self, request: RequestState, key: OrderKey, prefix_keys: Sequence[PageKey]) -> None:
        """Enter a request whose prompt begins with pages of these keys, or move it."""
        self.discard(request.request_id)
        self._all.put(request, key)
        path = (*prefix_keys, _END)
        self._paths[request.request_id] = key.level, path
        node = self._roots.setdefault(key.level, _Node())
        node.requests.put(request, key)
        for name in path:
            if (branch := node.branches.get(name)) is None:
                branch = node.branches[name] = _Node()
            else:
                del node.order[bisect.bisect_left(node.order, node.rank(name))]
            branch.requests.put(request, key)
            bisect.insort(node.order, node.rank(name))
            node = branch

    def discard(self, name: RequestId) -> None:
        """Take a request out, if it is in."""
        if (place := self._paths.pop(name, None)) is None:
            return
        self._all.discard(name)
        level, path = place
        node = self._roots[level]
        node.requests.discard(name)
        if not node.requests:
            # It was alone: all of the tree is its path.
            del self._roots[level]
            return
        for step in path:
            del node.order[bisect.bisect_left(node.order, node.rank(step))]
            branch = node.branches[step]
            branch.requests.discard(name)
            if not branch.requests:
                del node.branches[step]
                return
            bisect.insort(node.order, node.rank(step))
            node = branch

    def first(self) -> RequestState | None:
        """The request whose turn it is: the first one behind the heaviest branches."""
        level = self._all.first_level()
        if level is None:
            return None
        node = self._roots[level]
        while node.branches:
            node = node.branches[node.order[0][2]]
        return node.requests.first()
