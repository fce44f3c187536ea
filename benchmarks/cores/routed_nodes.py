"""Nodes that serve a trace on a virtual clock: each computes one prompt after the other.

Each has a cache, the production radix tree, and tells how busy it is and which pages come and go.
Pages are there once their prompt is computed. Decodes take time and nobody's way.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import root_key, split_keys
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.messages.line import Line
from raydix.runtime.routing.load_average import LoadAverage
from raydix.runtime.routing.predictors import TimePredictor

DECODE_S = 0.015
"""Seconds of each token of an answer."""
_PREFILL_BUDGET_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpeed:
    """What a node can do."""

    num_blocks: int
    prefill_tokens_per_s: float
    start_tokens_per_s: float
    """What it believes of that before it has computed anything."""
    pull: Line | None = None
    """The time to fetch pages from another node; None: it computes them."""


@dataclass(frozen=True, slots=True)
class KeyNews:
    """Blocks that have left a node's cache, then those that have come to it."""

    node: int
    removed: Sequence[int]
    stored: Sequence[int]
    """They follow each other in one chain."""
    parent: int | None
    """The block before the first that was stored; None: it begins the chain."""


@dataclass(slots=True)
class Served:
    """A request on a node, and what has become of it."""

    request: TraceRequest
    arrival_s: float
    first_token_s: float | None = None
    num_hit_tokens: int = 0
    num_elsewhere_tokens: int = 0
    """The tokens that another node had when it came, and this one neither had nor would have."""
    num_pulled_tokens: int = 0
    pulled_until_s: float = 0.0
    done: Callable[[], None] = field(default=lambda: None)


class RoutedNode:
    """Owns: one node's queue and cache."""

    def __init__(self, index: int, speed: NodeSpeed, clock: Clock, tell: Callable[[KeyNews], None]):
        self._index, self._speed, self._clock, self._tell = index, speed, clock, tell
        self._tree = RadixTree(page_size=1)
        self._pool = PagePool(speed.num_blocks)
        self._queue: deque[Served] = deque()
        self._free_s = 0.0
        self._load = LoadAverage(clock.now_s)
        self._prefill = TimePredictor(speed.start_tokens_per_s, full_amount=_PREFILL_BUDGET_TOKENS)
        """What the node has learnt of how quickly it computes."""
        self._blocks: dict[PageKey, int] = {}

    @property
    def num_blocks(self) -> int:
        """The number of blocks that its cache holds at most."""
        return self._speed.num_blocks

    @property
    def num_waiting(self) -> int:
        """The number of requests whose prompts are not computed."""
        return len(self._queue)

    @property
    def blocks(self) -> Collection[int]:
        """All blocks that are there."""
        return self._blocks.values()

    def prefill(self) -> Line:
        """The time to compute tokens, as it is learnt."""
        return self._prefill.likely_line(self._clock.now_s)

    def busy_s(self) -> float:
        """The time that a request would wait for those that are there, as the node predicts."""
        if not self._queue:
            return 0.0
        line, now_s = self.prefill(), self._clock.now_s
        head, *waiting = self._queue
        coming = set(head.request.blocks)
        busy_s = max(0.0, self._free_s - now_s)
        for served in waiting:
            blocks = served.request.blocks
            num_there = self.num_leading(blocks)
            while num_there < len(blocks) and blocks[num_there] in coming:
                num_there += 1
            coming.update(blocks[num_there:])
            busy_s += line.predict_s(served.request.num_tokens - num_there * BLOCK_TOKENS)
        return busy_s

    def arrivals_per_s(self) -> float:
        """How many requests have come of late, per second."""
        return self._load.arrivals_per_s(self._clock.now_s)

    def busy_fraction(self) -> float:
        """The part of the time in which prompts were computed of late."""
        return self._load.busy_fraction(self._clock.now_s)

    def num_leading(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are there."""
        return self._tree.match(root_key(), _packed(blocks)).num_pages

    def take(self, served: Served, peers: Sequence["RoutedNode"]) -> None:
        """A request has come."""
        num_here = self._num_coming(served.request.blocks)
        num_usable = _num_usable(served.request)
        most = min(
            num_usable, max((each.num_leading(served.request.blocks) for each in peers), default=0)
        )
        served.num_elsewhere_tokens = max(0, most - num_here) * BLOCK_TOKENS
        self._pull(served, served.request.blocks[:most])
        self._queue.append(served)
        self._load.arrive(self._clock.now_s)
        if len(self._queue) == 1:
            self._load.work(self._clock.now_s)
            self._begin()

    def _num_coming(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are here, or will be computed before."""
        shared = (_num_shared(each.request.blocks, blocks) for each in self._queue)
        return max(self.num_leading(blocks), *shared, 0)

    def _pull(self, served: Served, come: Sequence[int]) -> None:
        """Fetch what another node has, if that is quicker than to compute it."""
        num_pages = served.num_elsewhere_tokens // BLOCK_TOKENS
        if self._speed.pull is None or not num_pages:
            return
        seconds = self._speed.pull.predict_s(num_pages)
        if seconds < self.prefill().predict_s(num_pages * BLOCK_TOKENS):
            served.num_pulled_tokens = num_pages * BLOCK_TOKENS
            served.pulled_until_s = self._clock.now_s + seconds
            self._clock.after(seconds, lambda: self._keep(come))

    def _begin(self) -> None:
        """Compute the prompt of the next request, once all that is pulled for it has come."""
        served = self._queue[0]
        wait_s = served.pulled_until_s - self._clock.now_s
        if wait_s > 0:
            self._free_s = self._clock.now_s + wait_s
            self._clock.after(wait_s, self._begin)
            return
        num_there = min(self.num_leading(served.request.blocks), _num_usable(served.request))
        self._tree_use(served.request.blocks[:num_there])
        served.num_hit_tokens = num_there * BLOCK_TOKENS
        num_missing = served.request.num_tokens - served.num_hit_tokens
        seconds = num_missing / self._speed.prefill_tokens_per_s
        self._free_s = self._clock.now_s + seconds
        self._clock.after(seconds, lambda: self._finish(served, num_missing, seconds))

    def _finish(self, served: Served, num_missing: int, seconds: float) -> None:
        now_s = self._clock.now_s
        self._prefill.observe(num_missing, seconds, now_s)
        self._keep(served.request.blocks)
        served.first_token_s = now_s
        self._queue.popleft()
        if self._queue:
            self._begin()
        else:
            self._load.rest(now_s)
        served.done()

    def _tree_use(self, blocks: Sequence[int]) -> None:
        match = self._tree.match(root_key(), _packed(blocks))
        lock = self._tree.lock(match, match.num_pages, now_s=self._clock.now_s)
        self._tree.unlock(lock, last_step=0)

    def _keep(self, blocks: Sequence[int]) -> None:
        """Publish the blocks of a prompt that are not there yet, and evict what goes first."""
        now_s, packed = self._clock.now_s, _packed(blocks)
        match = self._tree.match(root_key(), packed)
        lock = self._tree.lock(match, match.num_pages, now_s=now_s)
        num_found = match.num_pages
        num_room = self._pool.num_free + self._tree.num_evictable_pages(0)
        num_new = min(len(blocks) - num_found, num_room)
        victims = self._tree.evict((max(0, num_new - self._pool.num_free),))
        for victim in victims:
            self._pool.release(victim.page_ids[0], after_step=0)
        self._pool.settle(0)
        page_ids = self._pool.allocate(num_new)
        assert page_ids is not None, "as many were evicted as were lacking"
        new = blocks[num_found : num_found + num_new]
        keys = b"".join(map(key_of, new))
        self._tree.insert(
            lock,
            _packed(new),
            (page_ids,),
            keys,
            segment=Segment.PROMPT,
            now_s=now_s,
        )
        self._tree.unlock(lock, last_step=0)

        gone = [self._blocks.pop(key) for each in victims for key in split_keys(each.keys)]
        self._blocks.update(zip(split_keys(keys), new, strict=True))
        parent = blocks[num_found - 1] if num_found else None
        if gone or new:
            self._tell(KeyNews(self._index, gone, new, parent))


@lru_cache(maxsize=1 << 20)
def key_of(block: int) -> PageKey:
    """The key of a block, as spread as all keys are."""
    return PageKey(hashlib.sha256(block.to_bytes(8, "little")).digest())


def _num_usable(request: TraceRequest) -> int:
    """The last token is computed in any case, and with it its block."""
    return min(len(request.blocks), max(0, request.num_tokens - 1) // BLOCK_TOKENS)


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _packed(blocks: Sequence[int]) -> bytes:
    return np.array(blocks, dtype="<i4").tobytes()
