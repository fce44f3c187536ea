"""What LRU and Belady's MIN reach on a trace: the model that the traces' table was made with.

Requests are served one at a time and in no time. Only leaves of the tree of blocks are evicted, and
none that the running request uses.
"""

import heapq
from collections.abc import Sequence

from benchmarks.cores.trace_requests import BLOCK_TOKENS, TraceRequest

_NEVER = 1 << 60
_Key = tuple[int, int]


class _Leaves:
    """The leaves among the blocks that are there, by key; an entry counts while it is true."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        """Each block that is there, and the one before it; -1: none is."""
        self._num_children: dict[int, int] = {}
        self._keys: dict[int, _Key] = {}
        self._heap: list[tuple[_Key, int]] = []

    def add(self, block: int, parent: int) -> None:
        self.parents[block] = parent
        self._num_children[parent] = self._num_children.get(parent, 0) + 1

    def set_key(self, block: int, key: _Key) -> None:
        self._keys[block] = key
        self.push(block)

    def push(self, block: int) -> None:
        if block in self.parents and not self._num_children.get(block):
            heapq.heappush(self._heap, (self._keys[block], block))

    def drop_first(self, in_use: set[int]) -> bool:
        """Drop the first leaf that is not in use; False: there is none."""
        spared = []
        found = None
        while self._heap and found is None:
            key, block = heapq.heappop(self._heap)
            is_leaf = block in self.parents and not self._num_children.get(block)
            if is_leaf and self._keys[block] == key:
                if block in in_use:
                    spared.append((key, block))
                else:
                    found = block
        for entry in spared:
            heapq.heappush(self._heap, entry)
        if found is None:
            return False
        parent = self.parents.pop(found)
        self._num_children[parent] -= 1
        self.push(parent)
        return True


def hit_fractions(requests: Sequence[TraceRequest], num_blocks: int) -> dict[str, float]:
    """The share of prompt tokens that are there when they are asked for, under LRU and MIN.

    As in the traces' table a last block that is not whole takes room, too: `lru` and `min`. Raydix
    keeps whole pages alone, as in `lru_whole`.
    """
    whole = [request.blocks for request in requests]
    every = [_with_partial(request) for request in requests]
    last_uses = [[index] * len(blocks) for index, blocks in enumerate(every)]
    ranks = {
        "lru": (every, last_uses),
        "lru_whole": (whole, last_uses),
        "min": (every, [[-use for use in uses] for uses in _next_uses(every)]),
    }
    num_tokens = sum(request.num_tokens for request in requests)
    return {
        name: _replay(chains, num_blocks, rank) * BLOCK_TOKENS / num_tokens
        for name, (chains, rank) in ranks.items()
    }


def _with_partial(request: TraceRequest) -> tuple[int, ...]:
    return (
        request.blocks
        if request.partial_block is None
        else (*request.blocks, request.partial_block)
    )


def infinite_hit_fraction(requests: Sequence[TraceRequest]) -> float:
    """The share that a cache without bounds would have."""
    seen: set[int] = set()
    num_hits = 0
    for request in requests:
        num_hits += sum(block in seen for block in request.blocks)
        seen.update(request.blocks)
    return num_hits * BLOCK_TOKENS / sum(request.num_tokens for request in requests)


def _next_uses(chains: Sequence[Sequence[int]]) -> list[list[int]]:
    coming: dict[int, int] = {}
    found = []
    for index in range(len(chains) - 1, -1, -1):
        found.append([coming.get(block, _NEVER) for block in chains[index]])
        coming.update(dict.fromkeys(chains[index], index))
    return found[::-1]


def _replay(
    chains: Sequence[Sequence[int]], num_blocks: int, ranks: Sequence[Sequence[int]]
) -> int:
    """The number of blocks that are there when they are asked for; the lowest rank goes first."""
    leaves = _Leaves()
    num_hits = 0
    for blocks, rank in zip(chains, ranks, strict=True):
        in_use = set(blocks)
        num_known = 0
        while num_known < len(blocks) and blocks[num_known] in leaves.parents:
            num_known += 1
        num_hits += num_known

        parent = -1
        for place, block in enumerate(blocks):
            if place >= num_known:
                if len(leaves.parents) >= num_blocks and not leaves.drop_first(in_use):
                    break
                leaves.add(block, parent)
            # Of equals the deepest goes first.
            leaves.set_key(block, (rank[place], -place))
            parent = block
    return num_hits
