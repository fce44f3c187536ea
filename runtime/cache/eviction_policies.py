"""Which cached pages go first, in L1 and in L2: a pure key function per policy."""

import math
from collections.abc import Callable
from typing import Protocol

from raydix.runtime.cache.standing import Kept, Over, Standing, counts_as_used_s
from raydix.runtime.config.policies import EvictionPolicy

EvictionKey = float | tuple[float, float]
"""The key that an eviction policy gives to pages: those with the smallest go first."""


class Evictable(Protocol):
    """Pages that go together, and their history."""

    @property
    def created_s(self) -> float:
        """When they came."""

    @property
    def num_hits(self) -> int:
        """How many requests have used them."""

    @property
    def priority(self) -> int:
        """The best (lowest) priority of the requests that brought them."""

    @property
    def worth_s(self) -> float:
        """How long after their last use they are worth keeping, as `ReuseChances` says."""

    @property
    def is_spare(self) -> bool:
        """Whether the next prompt of their chain has little to compute without them."""


PolicyKey = Callable[[Evictable, float], EvictionKey]
"""Gives a key to pages that count as used at some time."""


def lru(_: Evictable, used_s: float) -> EvictionKey:
    """A key by which the least recently used pages go first."""
    return used_s


def lfu(pages: Evictable, used_s: float) -> EvictionKey:
    """A key by which those with the fewest hits go first, then the least recently used."""
    return pages.num_hits, used_s


def fifo(pages: Evictable, _: float) -> EvictionKey:
    """A key by which the oldest pages go first."""
    return pages.created_s


def mru(_: Evictable, used_s: float) -> EvictionKey:
    """A key by which the most recently used pages go first."""
    return -used_s


def filo(pages: Evictable, _: float) -> EvictionKey:
    """A key by which the newest pages go first."""
    return -pages.created_s


def slru(pages: Evictable, used_s: float) -> EvictionKey:
    """A key by which the least recently used pages go first, those with two hits or more last."""
    return pages.num_hits >= 2, used_s


def priority(pages: Evictable, used_s: float) -> EvictionKey:
    """A key by which the least important pages (highest number) go first, then as in `lru`."""
    return -pages.priority, used_s


def reuse(pages: Evictable, used_s: float) -> EvictionKey:
    """A key by which pages go first that have waited longest beyond what they are worth."""
    return used_s + pages.worth_s


def tlru(pages: Evictable, used_s: float) -> EvictionKey:
    """A key by which pages go first without which a next prompt is soon computed, then as in `lru`.

    So it is not most hits that are sought but few long waits: what all conversations keep is all
    but their ends. Tail-optimised LRU; `ChainNeeds` says how long an end may be.
    """
    return not pages.is_spare, used_s


EVICTION_POLICIES: dict[EvictionPolicy, PolicyKey] = {
    EvictionPolicy.LRU: lru,
    EvictionPolicy.LFU: lfu,
    EvictionPolicy.FIFO: fifo,
    EvictionPolicy.MRU: mru,
    EvictionPolicy.FILO: filo,
    EvictionPolicy.SLRU: slru,
    EvictionPolicy.PRIORITY: priority,
    EvictionPolicy.REUSE: reuse,
    EvictionPolicy.TLRU: tlru,
}


def eviction_key(
    policy_key: PolicyKey, pages: Evictable, standing: Standing, now_s: float
) -> EvictionKey:
    """The key of pages of which it is known when they are used again.

    Those that count as used before all times go before all others, under every policy. Those that
    are kept go last of their equals, also where the latest use goes first, or what came first.
    Once they are kept no longer they count as used then, for which their owner places them anew:
    no other key shrinks as time passes.
    """
    # Where the latest use goes first a key would shrink as what comes back counts as used later: it
    # counts as used when it does at the latest.
    used_s = counts_as_used_s(standing, math.inf if policy_key is mru else now_s)
    key = policy_key(pages, used_s)
    match standing:
        case Kept(until_s) if until_s > now_s:
            return key if isinstance(key, tuple) else max(key, used_s)
        case Over():
            return (-math.inf, -math.inf) if isinstance(key, tuple) else -math.inf
        case _:
            return key
