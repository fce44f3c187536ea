"""The ends at which a chain can be of use, and for which of them pages are fetched. Pure functions.

A prefix may end only where every FULL and LATENT group has all of its pages, and every WINDOW group
the last ones. L3 keeps windows at checkpoints, so there may be few such ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from raydix.runtime.cache.kv_match import first_needed, longest_prefix
from raydix.runtime.config.checkpoint_distance import fetch_distance
from raydix.runtime.config.kv_layout import KvLayout


class PageHope(IntEnum):
    """What a lookup knows of a page. One byte per page."""

    HERE = 0
    """L1 or L2 has the page."""
    FETCHABLE = 1
    """L3 has the page, or may have it."""
    LOST = 2
    """The page will not come."""


_NOT_HERE = bytes(hope != PageHope.HERE for hope in range(256))
_LOST = bytes(hope >= PageHope.LOST for hope in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRule:
    """What the KV groups of a model need of a prefix."""

    reaches: tuple[int | None, ...] = (None,)
    """The pages that each KV group needs before the end of a prefix; None: all of them."""
    checkpoint_pages: int = 1
    """The least distance in pages of the ends whose windows are fetched; the last two may be nearer
    to each other.
    """

    @property
    def has_windows(self) -> bool:
        """Whether some KV group needs only the last pages."""
        return any(reach is not None for reach in self.reaches)

    def starts(self, end: int) -> tuple[int, ...]:
        """The first page that a prefix of `end` pages needs, per KV group."""
        return first_needed(self.reaches, end)


def make_rule(layout: KvLayout) -> PrefixRule:
    """The rule of a model's groups."""
    return PrefixRule(reaches=layout.reaches, checkpoint_pages=fetch_distance(layout) or 1)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The ends that a lookup fetches for."""

    reached: int
    """The best end all of whose pages are in L1 or L2."""
    ends: tuple[int, ...]
    """The later ends, in order; the last one is the best that can be had at all."""

    @property
    def best(self) -> int:
        """The end that is reached if everything comes."""
        return self.ends[-1] if self.ends else self.reached


def plan_fetch(rule: PrefixRule, pages: Sequence[bytes]) -> FetchPlan:
    """Choose the best end, and checkpoints on the way to it in case that not all of it comes.

    `pages`: per group a `PageHope` for each page of the chain.
    """
    num_pages = len(pages[0])
    reached = longest_prefix(rule.reaches, [each.translate(_NOT_HERE) for each in pages], num_pages)

    gaps = [each.translate(_LOST) for each in pages]
    ends: list[int] = []
    end = longest_prefix(rule.reaches, gaps, num_pages)
    while end > reached:
        ends.append(end)
        end = longest_prefix(rule.reaches, gaps, max(0, end - rule.checkpoint_pages))
    return FetchPlan(reached, tuple(reversed(ends)))
