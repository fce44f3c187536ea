"""Where did each prompt token come from, and if it was computed, why? A pure function.

A cached page counts for the tier that held it when the request arrived, whoever brought it to L1 since: all that wait
for one read from L3 count it as theirs.
"""

from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.settings import PrefetchStrategy, SchedulerSettings

Range = tuple[int, int, PageSource]


def attribute(
    request: RequestState, settings: SchedulerSettings, *, num_l1_pages: int, num_loaded_pages: int, num_left_pages: int
) -> list[Range]:
    """Split the prompt into ranges of tokens by source, in order, without gaps.

    `num_left_pages`: the next pages were in L2 but are computed because that is cheaper.
    """
    size = settings.page_size
    found = [PageSource.L1] * num_l1_pages + [PageSource.L2] * num_loaded_pages
    pages = [request.prefetch.arrival_source(page, source) for page, source in enumerate(found)]
    num_full = request.num_prompt // size
    pages += [PageSource.RECOMPUTE_CHEAPER] * num_left_pages
    pages = pages[:num_full]
    if len(pages) < num_full:
        reason = _miss_reason(request, settings, len(pages))
        pages += [reason] * (num_full - len(pages))
    ranges: list[Range] = []
    for page, source in enumerate(pages):
        _append(ranges, page * size, (page + 1) * size, source)
    if num_full * size < request.num_prompt:
        tail = PageSource.PARTIAL_PAGE if settings.prefix_caching else PageSource.CACHING_OFF
        _append(ranges, num_full * size, request.num_prompt, tail)
    elif pages and pages[-1] <= PageSource.L3:
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


def _miss_reason(request: RequestState, settings: SchedulerSettings, page: int) -> PageSource:
    if not settings.prefix_caching:
        return PageSource.CACHING_OFF
    if page >= len(request.prefetch.sources):
        return PageSource.NOT_FOUND
    source = PageSource(request.prefetch.sources[page])
    if source is PageSource.PENDING:
        if request.prefetch.first_runnable_s is None:
            return PageSource.NOT_FOUND  # it was in L2 when the request was admitted, so nothing was waited for
        is_patient = settings.prefetch.strategy is PrefetchStrategy.TIMEOUT
        return PageSource.TIMED_OUT if is_patient else PageSource.CANCELLED
    return PageSource.NOT_FOUND if source <= PageSource.L3 else source


def _append(ranges: list[Range], start: int, end: int, source: PageSource) -> None:
    if ranges and ranges[-1][2] is source:
        ranges[-1] = (ranges[-1][0], end, source)
    else:
        ranges.append((start, end, source))
