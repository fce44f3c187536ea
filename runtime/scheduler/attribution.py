"""Where did each prompt token come from, and if it was computed, why? A pure function.

A cached page counts for the tier that held it when the request arrived, whoever brought it to L1
since: all that wait for one read from L3 count it as theirs.
"""

from collections.abc import Iterator

from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.prefetch import PrefetchState
from raydix.runtime.scheduler.settings import SchedulerSettings

Range = tuple[int, int, PageSource]


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
    num_full = num_prompt // size
    num_cached = len(tiers)
    runs = [
        *prefetch.arrival_runs(tiers, first_needed(settings.reaches, num_cached)),
        (num_cached + num_left_pages, PageSource.RECOMPUTE_CHEAPER),
    ]
    runs += _missed_runs(prefetch, settings, num_cached + num_left_pages, num_full)

    ranges: list[Range] = []
    for stop_page, source in runs:
        _extend(ranges, min(stop_page, num_full) * size, source)

    if num_full * size < num_prompt:
        _extend(
            ranges,
            num_prompt,
            PageSource.PARTIAL_PAGE if settings.prefix_caching else PageSource.CACHING_OFF,
        )
    # Of a prompt that is cached as a whole the last token is computed all the same, to sample.
    elif ranges and ranges[-1][2] <= PageSource.L3:
        start, end, source = ranges.pop()
        if end - start > 1:
            ranges.append((start, end - 1, source))
        ranges.append((end - 1, end, PageSource.LAST_TOKEN))
    return ranges


def total_by_source(ranges: list[Range]) -> dict[str, int]:
    """Tokens per source; the values sum to the prompt."""
    totals: dict[str, int] = {}
    for start, end, source in ranges:
        totals[source.label] = totals.get(source.label, 0) + end - start
    return totals


def _missed_runs(
    prefetch: PrefetchState, settings: SchedulerSettings, start: int, stop: int
) -> Iterator[tuple[int, PageSource]]:
    """Runs of full pages in [start, stop), which are computed, by their end and the reason."""
    if start >= stop:
        return
    if not settings.prefix_caching:
        yield stop, PageSource.CACHING_OFF
        return

    for end, source in prefetch.missed_runs(start, stop):
        is_pending = source is PageSource.PENDING
        yield end, _not_awaited(prefetch, settings) if is_pending else source


def _not_awaited(prefetch: PrefetchState, settings: SchedulerSettings) -> PageSource:
    """Why pages are computed that might still have come."""
    if prefetch.first_runnable_s is None:
        # It was in L2 when the request was admitted, so nothing was waited for.
        return PageSource.NOT_FOUND
    # Until HostMemory has reported, storage may not have been asked at all.
    is_patient = settings.prefetch.strategy is PrefetchStrategy.TIMEOUT
    return PageSource.TIMED_OUT if is_patient and prefetch.has_report else PageSource.CANCELLED


def _extend(ranges: list[Range], end: int, source: PageSource) -> None:
    """Give the tokens from the last range up to `end` a source."""
    start = ranges[-1][1] if ranges else 0
    if end <= start:
        return
    if ranges and ranges[-1][2] is source:
        start = ranges.pop()[0]
    ranges.append((start, end, source))
