"""Where did each prompt token come from, and if it was computed, why? A pure function.

A cached page counts for the tier that held it when the request arrived, whoever brought it to L1
since: all that wait for one read from L3 count it as theirs.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.request.prefetch import PrefetchState
from raydix.runtime.scheduler.settings import SchedulerSettings

Range = tuple[int, int, PageSource]
Sources = NDArray[np.uint8]
"""A `PageSource` per page or token: arrays, for a prompt may have thousands."""

# Plain numbers, for numpy takes ten times as long to compare with members of an enum.
_L2, _L3, _NOT_FOUND, _NO_WINDOW, _PENDING = map(
    int,
    (
        PageSource.L2,
        PageSource.L3,
        PageSource.NOT_FOUND,
        PageSource.NO_WINDOW,
        PageSource.PENDING,
    ),
)


def attribute(
    num_prompt: int,
    prefetch: PrefetchState,
    settings: SchedulerSettings,
    *,
    tiers: bytes,
    num_left_pages: int,
) -> list[Range]:
    """Split the prompt into ranges of tokens by source, in order, without gaps.

    `tiers`: where each page of the cached prefix is. `num_left_pages`: the next pages were in L2
    but are computed because that is cheaper.
    """
    size = settings.page_size
    num_full, num_cached = settings.reusable_pages(num_prompt), len(tiers)
    num_found = min(num_cached + num_left_pages, num_full)
    last = PageSource.PARTIAL_PAGE if settings.prefix_caching else PageSource.CACHING_OFF

    by_page = np.empty(num_full, dtype=np.uint8)
    by_page[:num_cached] = _on_arrival(prefetch, settings, tiers)
    by_page[num_cached:num_found] = PageSource.RECOMPUTE_CHEAPER
    by_page[num_found:] = _why_computed(prefetch, settings, num_found, num_full)

    by_token = np.empty(num_prompt, dtype=np.uint8)
    by_token[: num_full * size] = by_page.repeat(size)
    by_token[num_full * size :] = last
    # Of a prompt that is cached as a whole the last token is computed all the same, to sample.
    if by_token[-1] <= _L3:
        by_token[-1] = PageSource.LAST_TOKEN

    changes = (by_token[1:] != by_token[:-1]).nonzero()[0] + 1
    edges = [0, *changes.tolist(), num_prompt]
    return [(start, end, PageSource(by_token[start])) for start, end in itertools.pairwise(edges)]


def total_by_source(ranges: list[Range]) -> dict[str, int]:
    """Tokens per source; the values sum to the prompt."""
    totals: dict[str, int] = {}
    for start, end, source in ranges:
        totals[source.label] = totals.get(source.label, 0) + end - start
    return totals


def _on_arrival(prefetch: PrefetchState, settings: SchedulerSettings, tiers: bytes) -> Sources:
    """The tier that held each page of the cached prefix on arrival.

    Where KV groups differ it is the farthest of those that need the page. Pages that no group needs
    count for the farthest tier of the others. `tiers`: where the pages are now, for those that came
    later.
    """
    now = _column(tiers)
    if not prefetch.by_group:
        return now

    said = np.zeros(len(now), dtype=np.uint8)
    starts = first_needed(settings.reaches, len(now))
    for sources, start in zip(prefetch.by_group, starts, strict=True):
        np.maximum(said[start:], _column(sources)[start : len(now)], out=said[start:])
    if unneeded := min(starts):
        said[:unneeded] = said[unneeded:].max(initial=0)

    if prefetch.has_report:
        # The mirror shows a page as soon as it has arrived, and its report comes later: a page that
        # is in L2 but was PENDING in the last report has been brought.
        said[(said == _PENDING) & (now == _L2)] = prefetch.brings
    return np.where(said <= _L3, said, now)


def _why_computed(
    prefetch: PrefetchState, settings: SchedulerSettings, start: int, stop: int
) -> Sources:
    """The reason for each full page in [start, stop), of which some KV group lacks the first.

    A page that all groups have is computed all the same, as the one before it is: it has the same
    reason. Where windows alone are missing, that is the reason.
    """
    if start == stop or not settings.prefix_caching:
        return np.full(stop - start, int(PageSource.CACHING_OFF), dtype=np.uint8)
    reasons = np.zeros(stop - start, dtype=np.uint8)
    in_windows = np.zeros(stop - start, dtype=np.uint8)
    # There are none of a request that was never looked up.
    for sources, reach in zip(prefetch.by_group, settings.reaches, strict=False):
        column = reasons if reach is None else in_windows
        np.maximum(column, _column(sources)[start:stop], out=column)
    # What was there on arrival, and is not any more, is not found: no window has to be missing.
    lacks_windows = settings.has_full and bool((in_windows[reasons <= _L3] > _L3).any())
    if lacks_windows:
        in_windows[(in_windows == _NOT_FOUND) & (reasons != _NOT_FOUND)] = _NO_WINDOW
    np.maximum(reasons, in_windows, out=reasons)
    if reasons[0] <= _L3:
        reasons[0] = _NO_WINDOW if lacks_windows else _NOT_FOUND

    places = np.where(reasons > _L3, np.arange(len(reasons)), 0)
    reasons = reasons[np.maximum.accumulate(places)]
    reasons[reasons == _PENDING] = _not_awaited(prefetch, settings)
    return reasons


def _column(sources: bytes) -> Sources:
    return np.frombuffer(sources, dtype=np.uint8)


def _not_awaited(prefetch: PrefetchState, settings: SchedulerSettings) -> PageSource:
    """The source that explains why pages were computed although they might still have come."""
    if prefetch.first_runnable_s is None:
        # It was in L2 when the request was admitted, or there is no L3: nothing was waited for.
        return PageSource.NOT_FOUND
    # Until HostMemory has reported, storage may not have been asked at all.
    is_patient = settings.prefetch.strategy is PrefetchStrategy.TIMEOUT
    return PageSource.TIMED_OUT if is_patient and prefetch.has_report else PageSource.CANCELLED
