"""The quick depth: a tier's own index and eviction on a trace, without steps, copies or time.

L1 is the Scheduler's `RadixTree`, L2 a whole `HostMemoryCore`, both unchanged. Their pages are the
trace's blocks.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np

from raydix.ids import ConnectionId, LookupId, PageKey, SchedulerName, TenantId, UserId
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry, plan_arena
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
from raydix.runtime.cache.radix_tree import Lock, RadixTree
from raydix.runtime.cache.standing import standing_after
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.traces import TraceRequest
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
from raydix.runtime.messages.retention import EndUse, Retention

_TENANT = TenantId(1)
_LINK = ConnectionId(1)
_PAGE_TOKENS = 16
_GROUP = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=16)
_LAYOUT = KvLayout(page_size=_PAGE_TOKENS, dtype="bfloat16", dtype_bytes=2, groups=(_GROUP,))
"""Any layout does: the cores count pages, and no bytes move."""


class Tier(Protocol):
    """A tier that requests go through."""

    def begin(self, request: TraceRequest, now_s: float) -> int:
        """Serve a request's prompt; returns how many of its blocks were there."""

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        """The request has ended, its answer is there, and its client says what comes next."""


class HostTier:
    """L2: a `HostMemoryCore` and the messages of a Scheduler.

    `num_blocks` is what it holds beside the free pages in the Scheduler's hands.
    """

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        settings = HostSettings(page_size=_PAGE_TOKENS, eviction=eviction)
        num_pages = num_blocks
        for _ in range(8):
            self._core = HostMemoryCore(_arena_of(num_pages), settings)
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
        self._commit(missing, now_s)
        return num_found

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        answer = [*map(_key, request.answer_blocks)]
        self._commit(answer, now_s)
        message = EndUse(
            user=UserId(request.session),
            tenant=_TENANT,
            keys=self._new.pop(request) + b"".join(answer),
            retention=hint,
        )
        self._say(message, now_s)

    def _commit(self, missing: list[PageKey], now_s: float) -> None:
        """Publish pages that were computed, as far as grants reach, until all are there."""
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
    """L1: a `RadixTree` whose tokens are the numbers of blocks.

    A request holds its prompt until its answer is there, if blocks of that are known.
    """

    def __init__(self, num_blocks: int, eviction: EvictionPolicy) -> None:
        self._tree = RadixTree(page_size=1, eviction=eviction)
        self._pool = PagePool(num_blocks)
        self._ends: dict[TraceRequest, RadixNode] = {}
        self._locks: dict[TraceRequest, Lock] = {}

    def begin(self, request: TraceRequest, now_s: float) -> int:
        packed = np.array(request.blocks, dtype="<i4").tobytes()
        self._tree.retention.advance(now_s)
        match = self._tree.match(root_key(), packed)
        lock = self._tree.lock(match, match.num_pages, now_s=now_s)
        num_found = match.num_pages
        self._insert(lock, request.blocks[num_found:], Segment.PROMPT, now_s)
        assert lock.node is not None
        self._ends[request] = lock.node
        if request.answer_blocks and lock.num_pages == len(request.blocks):
            self._locks[request] = lock
        else:
            self._tree.unlock(lock, last_step=0)
        return num_found

    def end(self, request: TraceRequest, hint: Retention | None, now_s: float) -> None:
        user = UserId(request.session)
        self._tree.retention.advance(now_s)
        node = self._ends.pop(request)
        lock = self._locks.pop(request, None)
        if lock is not None:
            self._insert(lock, request.answer_blocks, Segment.OUTPUT, now_s)
            assert lock.node is not None
            node = lock.node
            self._tree.unlock(lock, last_step=0)
        self._tree.retention.end_use(node, user)
        if hint is not None:
            self._tree.retention.retain(user, standing_after(hint, now_s))

    def _insert(self, lock: Lock, blocks: tuple[int, ...], segment: Segment, now_s: float) -> None:
        """Add blocks behind what is locked, as many as room can be made for."""
        num_new = min(len(blocks), self._pool.num_free + self._tree.num_evictable_pages(0))
        victims = self._tree.evict((num_new - self._pool.num_free,))
        for victim in victims:
            self._pool.release(victim.page_ids[0], after_step=0)
        self._pool.settle(0)
        page_ids = self._pool.allocate(num_new)
        assert page_ids is not None
        new = blocks[:num_new]
        insertion = self._tree.insert(
            lock,
            np.array(new, dtype="<i4").tobytes(),
            (page_ids,),
            b"".join(map(_key, new)),
            segment=segment,
            now_s=now_s,
        )
        # An answer's blocks may be there already.
        self._pool.release(page_ids[: insertion.num_existing_pages], after_step=0)
        self._pool.settle(0)


def _arena_of(num_pages: int) -> ArenaGeometry:
    """An arena of so many pages. A real one has a few more, as its slabs are aligned."""
    page_bytes = _LAYOUT.host_page_bytes(0)
    planned = plan_arena(_LAYOUT, num_pages * page_bytes)
    slab_bytes = num_pages * page_bytes
    return replace(planned, num_slabs=1, slab_bytes=slab_bytes, pages_per_slab=num_pages)


def _key(block: int) -> PageKey:
    return PageKey(block.to_bytes(8, "big") + bytes(KEY_BYTES - 16) + block.to_bytes(8, "big"))
