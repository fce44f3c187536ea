"""What a Scheduler tells those who follow its caches: which pages each tier has got and lost.

Pages go by short keys, the first 16 bytes of their page keys. Whoever begins to follow is told
first what there is, then every change in its order: a page comes once and goes once, in each tier,
lane and KV group, whichever process has died meanwhile. A page of L1 or L2 is there when it is told
of, though it may go at any time; one of L3 was there when storage was last asked.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import msgspec

ShortKeys = NewType("ShortKeys", bytes)
"""The first 16 bytes of page keys, concatenated."""


class Tier(StrEnum):
    """Where pages are kept."""

    L1 = "l1"
    L2 = "l2"
    L3 = "l3"


class TokenRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a run of pages next to each other in one chain holds, so that others can find it."""

    parent: ShortKeys | None
    """The page before the first one; None: the run begins the chain."""
    packed_tokens: bytes
    """The tokens of all pages, little-endian int32."""
    cache_salt: str | None
    """The salt from which the keys are chained; None: they have none."""


class PagesStored(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A tier has pages that it had not. Of one chain in its order, if `run` says what they hold."""

    tier: Tier
    lane: int | None
    """The lane whose L1 it is; None for the tiers that all lanes share."""
    group: int
    keys: ShortKeys
    run: TokenRun | None = None
    """What the pages hold; None: not told. A page of L1 says so in one of its KV groups."""


class PagesRemoved(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A tier has lost pages that it had."""

    tier: Tier
    lane: int | None
    group: int
    keys: ShortKeys


class TierCleared(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """A tier has lost all pages of all KV groups: who had them is gone."""

    tier: Tier
    lane: int | None


KvEvent = PagesStored | PagesRemoved | TierCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNews:
    """Events in their order. Stale once the link over which they came has closed."""

    events: tuple[KvEvent, ...]
    is_whole: bool
    """Whether all that there was when the follower came has been told with these or before."""
