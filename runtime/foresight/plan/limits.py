"""What LRU and Belady's MIN reach on a trace: the model that the traces' table was made with.

Requests are served one at a time and in no time. Only leaves of the tree of blocks are evicted, and
none that the running request uses.
"""

import heapq
from collections.abc import Sequence
from itertools import zip_longest

from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest

Chain = tuple[int, ...]
"""The blocks of a prompt."""
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

    def use(self, chain: Chain, ranks: Sequence[int]) -> None:
        """Give the blocks of a chain their keys, of equals the deepest goes first."""
        for place, block in enumerate(chain):
            self._keys[block] = ranks[place], -place
        # The others are no leaves.
        if chain:
            self.push(chain[-1])

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
    every = chains_of(requests, with_partial=True)
    found = {
        "lru": lru_blocks(every, num_blocks),
        "lru_whole": lru_blocks(chains_of(requests, with_partial=False), num_blocks),
        "min": min_blocks(every, num_blocks),
    }
    num_tokens = sum(request.num_tokens for request in requests)
    return {name: sum(counts) * BLOCK_TOKENS / num_tokens for name, counts in found.items()}


def chains_of(requests: Sequence[TraceRequest], *, with_partial: bool) -> list[Chain]:
    """The blocks of each prompt; with or without a last one that is not whole."""
    return [
        (*request.blocks, request.partial_block)
        if with_partial and request.partial_block is not None
        else request.blocks
        for request in requests
    ]


def answers_of(requests: Sequence[TraceRequest]) -> list[Chain]:
    """The blocks that each answer leaves behind its prompt's whole ones, as far as known."""
    return [request.answer_blocks for request in requests]


def infinite_hit_fraction(requests: Sequence[TraceRequest]) -> float:
    """The share that a cache without bounds would have."""
    found = infinite_blocks(chains_of(requests, with_partial=False))
    return sum(found) * BLOCK_TOKENS / sum(request.num_tokens for request in requests)


def infinite_blocks(chains: Sequence[Chain], answers: Sequence[Chain] = ()) -> list[int]:
    """How many of each prompt's blocks a cache without bounds has.

    `answers`: the blocks of each answer, as for all functions here; none if they are left out.
    """
    seen: set[int] = set()
    found = []
    for chain, answer in zip_longest(chains, answers, fillvalue=()):
        found.append(sum(block in seen for block in chain))
        seen.update(chain, answer)
    return found


def lru_blocks(
    chains: Sequence[Chain], num_blocks: int, answers: Sequence[Chain] = ()
) -> list[int]:
    """How many of each prompt's blocks are there, if the least recently used leaf goes."""
    whole = _with_answers(chains, answers)
    ranks = [[index] * len(each) for index, each in enumerate(whole)]
    return _replay(whole, num_blocks, ranks, [*map(len, chains)])


def min_blocks(
    chains: Sequence[Chain], num_blocks: int, answers: Sequence[Chain] = ()
) -> list[int]:
    """How many of each prompt's blocks are there, if the leaf goes that is used last (MIN)."""
    whole = _with_answers(chains, answers)
    num_asked = [*map(len, chains)]
    ranks = [[-use for use in uses] for uses in _next_uses(whole, num_asked)]
    return _replay(whole, num_blocks, ranks, num_asked)


def bypassed_min_blocks(
    chains: Sequence[Chain], num_blocks: int, answers: Sequence[Chain] = ()
) -> list[int]:
    """The same, if blocks need not even be taken in: what a prompt ends with may go at once.

    The "optimal" policy of other simulators. A tier that requests compute in cannot do so; L2 and
    L3 can, which give up what has just come where that was used least.
    """
    there: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    found = []
    whole = _with_answers(chains, answers)
    num_asked = [*map(len, chains)]
    next_uses = _next_uses(whole, num_asked)
    for blocks, uses, num_prompt in zip(whole, next_uses, num_asked, strict=True):
        num_known = 0
        while num_known < len(blocks) and blocks[num_known] in there:
            num_known += 1
        found.append(min(num_known, num_prompt))
        for place, (block, use) in enumerate(zip(blocks, uses, strict=True)):
            there[block] = use
            heapq.heappush(heap, (-use, -place, block))
        while len(there) > num_blocks:
            negative_use, _, block = heapq.heappop(heap)
            # Entries of earlier uses are behind those of later ones, and count no more.
            if there.get(block) == -negative_use:
                del there[block]
    return found


def _with_answers(chains: Sequence[Chain], answers: Sequence[Chain]) -> list[Chain]:
    return [chain + answer for chain, answer in zip_longest(chains, answers, fillvalue=())]


def _next_uses(chains: Sequence[Chain], num_asked: Sequence[int]) -> list[list[int]]:
    """Per block of each chain, the next prompt that has it; its first blocks are a prompt's."""
    coming: dict[int, int] = {}
    found = []
    for index in range(len(chains) - 1, -1, -1):
        found.append([coming.get(block, _NEVER) for block in chains[index]])
        coming.update(dict.fromkeys(chains[index][: num_asked[index]], index))
    return found[::-1]


def _replay(
    chains: Sequence[Chain],
    num_blocks: int,
    ranks: Sequence[Sequence[int]],
    num_asked: Sequence[int],
) -> list[int]:
    """Per prompt, the blocks that are there when they are asked for; the lowest rank goes first.

    `num_asked`: how many of each chain's blocks are the prompt's, behind which its answer's come.
    """
    leaves = _Leaves()
    found = []
    for blocks, rank, num_prompt in zip(chains, ranks, num_asked, strict=True):
        in_use = set(blocks)
        num_known = 0
        while num_known < len(blocks) and blocks[num_known] in leaves.parents:
            num_known += 1
        found.append(min(num_known, num_prompt))

        # What is in use stays meanwhile, whatever its key is.
        num_there = num_known
        parent = blocks[num_known - 1] if num_known else -1
        for block in blocks[num_known:]:
            if len(leaves.parents) >= num_blocks and not leaves.drop_first(in_use):
                break
            leaves.add(block, parent)
            parent = block
            num_there += 1
        leaves.use(blocks[:num_there], rank)
    return found
