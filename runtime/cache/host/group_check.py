"""What must hold of the pages of the slabs that one KV group owns."""

from collections.abc import Iterable

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.page_names import PageNames
from raydix.runtime.cache.host.page_runs import PageRuns
from raydix.runtime.cache.host.pages import HostPages, HostPageState


def check_group(
    group: int,
    free_pages: Iterable[HostPageId],
    names: PageNames,
    host_pages: HostPages,
    evictable_runs: PageRuns,
) -> None:
    """Raise AccountingError unless a group's pages, their names and their runs agree."""
    counts = {state: host_pages.count(group, state) for state in HostPageState}
    named = {key: page_id for key in names if (page_id := names.find(key)) is not None}

    num_unread = sum(not host_pages.num_readers(page_id) for page_id in named.values())
    evictable = list(map(HostPageId, evictable_runs.items(group)))
    free = {page_id for page_id in free_pages if host_pages.is_free(page_id, group)}
    figures = {
        "free": (counts[HostPageState.FREE], len(free)),
        "ready": (counts[HostPageState.READY], len(names)),
        "evictable": (num_unread, len(evictable)),
        "listed": (len(evictable), evictable_runs.length(group)),
        "distinct pages": (len(set(named.values())), len(names)),
    }

    for name, (counted, kept) in figures.items():
        if counted != kept:
            raise AccountingError(
                f"group {group}: {counted} {name} pages counted, {kept} on record ({counts})"
            )

    for key, page_id in named.items():
        named_by = host_pages.key(page_id)
        if named_by != key or host_pages.group_of(page_id) != group:
            raise AccountingError(
                f"group {group}: {key.hex()} names host page {page_id}, which holds {named_by!r}"
            )

    for page_id in evictable:
        if host_pages.key(page_id) is None or host_pages.num_readers(page_id):
            raise AccountingError(
                f"group {group}: host page {page_id} is evictable but "
                f"{host_pages.state(page_id).name}"
            )
