"""The production tiers on a trace: HostMemory's core, or the tree of L1, and what they are told."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.cores.trace_requests import BLOCK_TOKENS, TraceRequest
from benchmarks.model.model_shapes import small_model_layout
from raydix.ids import ConnectionId, LookupId, PageKey, SchedulerName, TenantId, UserId
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import (
    FromScheduler,
    HostEvent,
    SchedulerAttached,
    ToScheduler,
)
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.page_key import KEY_BYTES, root_key
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import RadixNode, Segment
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.cache.standing import standing_after
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    CommitPages,
    CopiesDrained,
    Lookup,
    LookupProgress,
    PagesGranted,
    PageSource,
    ToHost,
)
from raydix.runtime.messages.retention import EndUse, Retention, RetentionKind

_TENANT = TenantId(1)
_LINK = ConnectionId(1)


class Tier(Protocol):
    """A tier that requests go through."""

    def begin(self, request: TraceRequest, now_s: float) -> int:
        """Serve a request's prompt; returns how many of its blocks were there."""

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        """The request has ended, and its client says what comes next."""


class HostTier:
    """L2: a `HostMemoryCore` and the messages of a Scheduler.

    `num_blocks` is what it holds beside the free pages in the Scheduler's hands.
    """

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        layout = small_model_layout(BLOCK_TOKENS)
        settings = HostSettings(page_size=BLOCK_TOKENS, eviction=eviction)
        num_pages = num_blocks
        for _ in range(8):
            arena = plan_arena(layout, num_pages * layout.host_page_bytes(0))
            self._core = HostMemoryCore(arena, settings)
            self._grants: list[tuple[int, int]] = []
            self._found = 0
            self._tell(SchedulerAttached(_LINK, SchedulerName("replay")), 0.0)
            self._say(CopiesDrained(), 0.0)
            num_pages = num_blocks + len(self._grants)
        self._num_lookups = 0
        self._new: dict[TraceRequest, bytes] = {}
        """The keys of what running requests have computed."""

    def begin(self, request: TraceRequest, now_s: float) -> int:
        keys = [_key(block) for block in request.blocks]
        self._num_lookups += 1
        lookup = Lookup(
            lookup_id=LookupId(self._num_lookups),
            keys=b"".join(keys),
            num_l1_pages=(0,),
            user=UserId(request.session),
        )
        self._found = 0
        if keys:
            self._say(lookup, now_s)
        num_found = self._found
        missing = keys[num_found:]
        self._new[request] = b"".join(missing)
        while missing:
            num_granted = min(len(self._grants), len(missing))
            grants, self._grants = self._grants[:num_granted], self._grants[num_granted:]
            commit = CommitPages(
                keys=b"".join(missing[:num_granted]),
                host_page_ids=int32_array([page for page, _ in grants]),
                generations=int32_array([generation for _, generation in grants]),
            )
            missing = missing[num_granted:]
            # Steps take time: no two commits come at once.
            now_s += 1e-6
            self._say(commit, now_s)
        return num_found

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        message = EndUse(
            user=UserId(request.session),
            tenant=_TENANT,
            keys=self._new.pop(request),
            retention=hint,
        )
        self._say(message, now_s)

    def _say(self, message: ToHost, now_s: float) -> None:
        self._tell(FromScheduler(_LINK, message), now_s)

    def _tell(self, event: HostEvent, now_s: float) -> None:
        for effect in self._core.handle(event, now_s):
            match effect:
                case ToScheduler(_, PagesGranted() as granted):
                    pairs = zip(
                        granted.host_page_ids.tolist(), granted.generations.tolist(), strict=True
                    )
                    self._grants += pairs
                case ToScheduler(_, LookupProgress() as report):
                    sources = report.sources[0]
                    found = [code == PageSource.L2 for code in sources] + [False]
                    self._found = found.index(False)
                case _:
                    pass


class TreeTier:
    """L1: a `RadixTree` whose tokens are the numbers of blocks. Nothing stays locked."""

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        self._tree = RadixTree(page_size=1, eviction=eviction)
        self._pool = PagePool(num_blocks)
        self._ends: dict[TraceRequest, RadixNode] = {}

    def begin(self, request: TraceRequest, now_s: float) -> int:
        packed = np.array(request.blocks, dtype="<i4").tobytes()
        self._tree.retention.advance(now_s)
        match = self._tree.match(root_key(), packed)
        lock = self._tree.lock(match, match.num_pages, now_s=now_s)
        num_found = match.num_pages
        num_new = len(request.blocks) - num_found
        num_new = min(num_new, self._pool.num_free + self._tree.num_evictable_pages(0))
        victims = self._tree.evict((num_new - self._pool.num_free,))
        for victim in victims:
            self._pool.release(victim.page_ids[0], after_step=0)
        self._pool.settle(0)
        page_ids = self._pool.allocate(num_new)
        assert page_ids is not None
        new = request.blocks[num_found : num_found + num_new]
        self._tree.insert(
            lock,
            packed[4 * num_found : 4 * (num_found + num_new)],
            (page_ids,),
            b"".join(map(_key, new)),
            segment=Segment.PROMPT,
            now_s=now_s,
        )
        assert lock.node is not None
        self._ends[request] = lock.node
        self._tree.unlock(lock, last_step=0)
        return num_found

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        user = UserId(request.session)
        self._tree.retention.advance(now_s)
        self._tree.retention.end_use(self._ends.pop(request), user)
        if hint is not None:
            self._tree.retention.retain(user, standing_after(hint, now_s))


def _key(block: int) -> PageKey:
    return PageKey(block.to_bytes(8, "big") + bytes(KEY_BYTES - 16) + block.to_bytes(8, "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Which hints clients give, and how many of them are wrong."""

    with_ends: bool = True
    with_pauses: bool = True
    wrong_fraction: float = 0.0
    """The hints that say that a session ends or not, whichever is false."""
    late_fraction: float = 0.0
    """Pauses that last twice as long as was said."""


class _Adviser:
    """Draws the hint that a client gives with each request."""

    def __init__(self, requests: Sequence[TraceRequest], hints: Hints) -> None:
        self._random = random.Random(11)
        self._hints = hints
        self._pauses = [r.next_s - r.arrival_s for r in requests if r.next_s is not None]

    def hint(self, request: TraceRequest, now_s: float) -> Retention | None:
        is_end = request.next_s is None
        pause_s = 0.0 if request.next_s is None else max(0.0, request.next_s - now_s)
        if self._random.random() < self._hints.wrong_fraction:
            is_end, pause_s = not is_end, self._random.choice(self._pauses)
        elif self._random.random() < self._hints.late_fraction:
            pause_s /= 2
        if is_end:
            return Retention(kind=RetentionKind.END) if self._hints.with_ends else None
        if not self._hints.with_pauses:
            return None
        return Retention(kind=RetentionKind.RESUME, seconds=pause_s)


def hit_fraction(
    requests: Sequence[TraceRequest], tier: Tier, hints: Hints | None, *, with_durations: bool
) -> float:
    """The share of prompt tokens that the tier holds when they are asked for."""
    adviser = None if hints is None else _Adviser(requests, hints)
    num_hits = 0
    for now_s, request, is_end in _events(requests, with_durations):
        if is_end:
            hint = None if adviser is None else adviser.hint(request, now_s)
            tier.end(request, hint, now_s)
        else:
            num_hits += tier.begin(request, now_s)
    return num_hits * BLOCK_TOKENS / sum(request.num_tokens for request in requests)


def _events(
    requests: Sequence[TraceRequest], with_durations: bool
) -> Iterator[tuple[float, TraceRequest, bool]]:
    """Arrivals and ends, in time."""
    ends: list[tuple[float, int]] = []
    for index, request in enumerate(requests):
        while ends and ends[0][0] <= request.arrival_s:
            end_s, ended = heapq.heappop(ends)
            yield end_s, requests[ended], True
        yield request.arrival_s, request, False
        if with_durations:
            heapq.heappush(ends, (request.end_s, index))
        else:
            yield request.arrival_s, request, True
