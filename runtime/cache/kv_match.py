"""How much of a prompt its cached pages cover, over all KV groups, and which tier each page comes
from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.config.kv_layout import GroupKind, KvGroup
from raydix.runtime.messages.host import PageSource

Availability = NDArray[np.uint8]
"""One `PageSource` per page of the prompt: L1, L2 or L3 where it can be had, anything else where it
cannot.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMatch:
    """A usable prefix of `num_pages` pages. Group g takes pages [starts[g], num_pages) from
    `sources[g]`, in order.
    """

    num_pages: int
    starts: tuple[int, ...]
    """The first page that the group needs: 0, or where the window of the next token begins."""
    sources: tuple[Availability, ...]
    """Per group `num_pages - starts[g]` values, each L1, L2 or L3."""


def window_pages(window: int, page_size: int) -> int:
    """Pages before a page boundary that the token after it sees through a window of `window`
    tokens.
    """
    return -(-(window - 1) // page_size)


def match_groups(
    groups: Sequence[KvGroup], availability: Sequence[Availability], *, page_size: int
) -> KvMatch:
    """The longest prefix from which the next token can be computed.

    It may end at page n only if every FULL and LATENT page of [0, n) is available, and every WINDOW
    page of the last `window_pages`. Raises ValueError if the maps differ in length or number.
    """
    lengths = {len(pages) for pages in availability}
    if len(groups) != len(availability) or len(lengths) != 1:
        raise ValueError(
            f"{len(groups)} groups have maps of lengths {[len(pages) for pages in availability]}"
        )
    is_valid = np.ones(lengths.pop() + 1, dtype=np.bool_)
    ends = np.arange(len(is_valid))
    for group, pages in zip(groups, availability, strict=True):
        is_valid &= np.minimum(ends, _num_needed(group, page_size, len(pages))) <= _run_lengths(
            pages
        )
    num_pages = int(np.flatnonzero(is_valid)[-1])
    starts = tuple(max(0, num_pages - _num_needed(group, page_size, num_pages)) for group in groups)
    sources = tuple(
        pages[start:num_pages] for pages, start in zip(availability, starts, strict=True)
    )
    return KvMatch(num_pages=num_pages, starts=starts, sources=sources)


def _num_needed(group: KvGroup, page_size: int, num_pages: int) -> int:
    """Pages before the end of a prefix of at most `num_pages` pages that the group must have."""
    match group.kind:
        case GroupKind.FULL | GroupKind.LATENT:
            return num_pages
        case GroupKind.WINDOW:
            if group.window is None:
                raise ValueError(
                    f"a WINDOW group of layers {group.layers} has no window; expected a number of "
                    f"tokens"
                )
            return window_pages(group.window, page_size)


def _run_lengths(pages: Availability) -> NDArray[np.int64]:
    """For each n in [0, len(pages)]: how many available pages end there without a gap."""
    ends = np.arange(len(pages) + 1)
    gap_ends = np.zeros(len(pages) + 1, dtype=np.int64)
    gap_ends[1:] = np.where(pages > PageSource.L3, ends[1:], 0)
    return ends - np.maximum.accumulate(gap_ends)
