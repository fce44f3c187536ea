"""How much of a chain L1 and L2 hold together, over all KV groups. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.runtime.cache.kv_match import first_needed, last_window_end, match_groups
from raydix.runtime.cache.page_key import ChainKeys
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.mirror import KnownPages

_L1, _L2, _NOWHERE = (
    bytes([source]) for source in (PageSource.L1, PageSource.L2, PageSource.NOT_FOUND)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """Where a chain can be taken up, and what is to be loaded for that."""

    match: Match
    """The longest cached path in L1. WINDOW groups may lack some of its pages."""
    num_l1_pages: int
    """The number of leading pages after which L1 alone lets a request be taken up."""
    num_pages: int
    """The number of leading pages after which L1 and L2 together let a request be taken up."""
    num_known_pages: int
    """The number of leading pages that are cached in FULL and LATENT groups, whatever windows are.
    If it exceeds `num_pages`, the window needed to take up a request behind them is gone.
    """
    loads: tuple[Sequence[int], ...]
    """Per KV group, the pages that L1 lacks before `num_pages`, in order.

    L2 holds all pages from the first of them up to `num_pages`, so that they can be leased.
    """

    @property
    def num_l2_pages(self) -> int:
        """The number of pages that are gained by loading from L2."""
        return self.num_pages - self.num_l1_pages


def find_prefix(
    settings: SchedulerSettings,
    host: KnownPages | None,
    match: Match,
    keys: ChainKeys,
    *,
    max_pages: int,
) -> CachedPrefix:
    """The longest usable prefixes of a chain, `max_pages` at most, as far as is known.

    `keys` are those of all these pages; None for `host`: there is no L2.
    """
    num_path = min(match.num_pages, max_pages)
    stop = _end_without_windows(settings, host, keys, num_path, max_pages)
    maps = [
        _L1 * num_path + _L2 * (stop - num_path) if reach is None else _in_l1(ids, num_path, stop)
        for ids, reach in zip(match.page_ids, settings.reaches, strict=True)
    ]
    num_l1_pages = num_path
    if settings.has_windows:
        in_l1 = [pages[:num_path] for pages in maps]
        num_l1_pages = match_groups(
            settings.layout.groups, in_l1, page_size=settings.page_size
        ).num_pages

    num_pages, loads = num_l1_pages, _no_loads(settings)
    if host is not None and num_l1_pages < stop:
        num_pages, loads = _match_with_l2(settings, host, maps, keys, num_l1_pages)

    return CachedPrefix(
        match=match,
        num_l1_pages=num_l1_pages,
        num_pages=num_pages,
        num_known_pages=stop if settings.has_full else max(num_pages, num_path),
        loads=loads,
    )


def ends_in_l1(settings: SchedulerSettings, match: Match, num_pages: int) -> tuple[int, ...]:
    """Per KV group, how far L1 holds the first `num_pages` of a chain.

    Of a WINDOW group: the last page before which it holds a window.
    """
    num_path = min(match.num_pages, num_pages)
    ends = [
        num_path
        if reach is None
        else match_groups(
            (group,), (_in_l1(ids, num_path, num_path),), page_size=settings.page_size
        ).num_pages
        for group, reach, ids in zip(
            settings.layout.groups, settings.reaches, match.page_ids, strict=True
        )
    ]
    return tuple(ends)


def tiers_of(settings: SchedulerSettings, num_pages: int, loads: Sequence[Sequence[int]]) -> bytes:
    """The tier that each page of a prefix is taken from: the farther one, where groups differ.

    A page that no group needs, because all look back over windows that begin later, counts for the
    farthest tier of these windows.
    """
    tiers = bytearray(_L1 * num_pages)
    for pages in loads:
        for page in pages:
            tiers[page] = PageSource.L2
    if not settings.has_full and num_pages:
        start = min(first_needed(settings.reaches, num_pages))
        tiers[:start] = bytes([max(tiers[start:], default=PageSource.L1)]) * start
    return bytes(tiers)


def _no_loads(settings: SchedulerSettings) -> tuple[Sequence[int], ...]:
    return ((),) * settings.num_groups


def _end_without_windows(
    settings: SchedulerSettings,
    host: KnownPages | None,
    keys: ChainKeys,
    num_path: int,
    max_pages: int,
) -> int:
    """The number of pages that L1 and L2 hold in all FULL and LATENT groups, whatever windows."""
    if host is None:
        return num_path
    stop = max_pages
    for group, reach in enumerate(settings.reaches):
        # Where a group that needs all pages lacks one, no group is of use behind it.
        if reach is None:
            stop = num_path + host.count_resident(group, keys, num_path, stop)
    return stop


def _in_l1(page_ids: Int32Array, num_path: int, num_pages: int) -> bytes:
    """A map of `num_pages`, of which L1 may hold the first `num_path`."""
    held = np.where(page_ids[:num_path] != 0, PageSource.L1, PageSource.NOT_FOUND)
    return held.astype(np.uint8).tobytes() + _NOWHERE * (num_pages - num_path)


def _add_last_windows(
    settings: SchedulerSettings, host: KnownPages, maps: list[bytes], keys: ChainKeys, stop: int
) -> int:
    """Add to the maps what L2 holds of the last windows that all groups have before one end.

    Returns that end. Of a long chain L2 holds few windows, so few of its pages are asked about.
    """
    former = None
    while former != stop:
        former = stop
        for group, reach in enumerate(settings.reaches):
            if reach is not None:
                stop = _add_last_window(host, group, reach, maps, keys, stop)
    return stop


def _add_last_window(
    host: KnownPages, group: int, reach: int, maps: list[bytes], keys: ChainKeys, stop: int
) -> int:
    pages = maps[group]
    end = last_window_end(
        lambda page: pages[page] == PageSource.L1 or host.has_page(group, keys, page), reach, stop
    )
    window = slice(max(0, end - reach), end)
    maps[group] = pages[: window.start] + pages[window].replace(_NOWHERE, _L2) + pages[end:]
    return end


def _match_with_l2(
    settings: SchedulerSettings,
    host: KnownPages,
    maps: list[bytes],
    keys: ChainKeys,
    num_l1_pages: int,
) -> tuple[int, tuple[Sequence[int], ...]]:
    """The longest prefix whose missing pages can be leased, and these pages per group."""
    stop = len(maps[0])
    while True:
        stop = _add_last_windows(settings, host, maps, keys, stop)
        found = match_groups(
            settings.layout.groups, [pages[:stop] for pages in maps], page_size=settings.page_size
        )
        if found.num_pages <= num_l1_pages:
            return num_l1_pages, _no_loads(settings)

        loads = tuple(
            [
                _pages_from_l2(sources, start, found.num_pages)
                for sources, start in zip(found.sources, found.starts, strict=True)
            ]
        )
        gap = _first_gap(host, loads, keys, found.num_pages)
        if gap is None:
            return found.num_pages, loads
        # A lease is one run of pages that L2 holds: it cannot pass this page, which L1 alone has.
        stop = gap


def _pages_from_l2(sources: bytes, start: int, stop: int) -> Sequence[int]:
    first = sources.find(_L2)
    if first < 0:
        return ()
    if sources.count(_L2) == len(sources) - first:
        return range(start + first, stop)
    return [start + page for page, source in enumerate(sources) if source == PageSource.L2]


def _first_gap(
    host: KnownPages, loads: Sequence[Sequence[int]], keys: ChainKeys, stop: int
) -> int | None:
    """The first page behind the first load of a group that L2 does not hold there."""
    gaps = [
        page
        for group, pages in enumerate(loads)
        if len(pages) and len(pages) < stop - pages[0]
        for page in range(pages[0], stop)
        if not host.has_page(group, keys, page)
    ]
    return min(gaps, default=None)
