"""What must hold of the pages of the slabs that one KV group owns."""

from collections.abc import Iterable

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.cache.host.lru_lists import Items
from raydix.runtime.cache.host.page_names import PageNames, there_of
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
    keys = list(names)
    found = names.find_all(keys)
    named = there_of(found)

    num_unread = len(named) - np.count_nonzero(host_pages.num_readers_of(named))
    evictable = evictable_runs.listed_pages(group)
    listed = np.array(list(set(free_pages)), dtype=np.int64)
    figures = {
        "free": (counts[HostPageState.FREE], host_pages.num_free(listed, group)),
        "ready": (counts[HostPageState.READY], len(names)),
        "evictable": (num_unread, len(evictable)),
        "listed": (len(evictable), evictable_runs.length(group)),
        "distinct pages": (len(set(found) - {None}), len(names)),
    }

    for name, (counted, kept) in figures.items():
        if counted != kept:
            raise AccountingError(
                f"group {group}: {counted} {name} pages counted, {kept} on record ({counts})"
            )

    # All are found, or there were fewer distinct pages.
    if host_pages.keys_of(named.tolist()) != keys or not host_pages.are_of(named, group).all():
        there = zip(keys, map(HostPageId, named.tolist()), strict=True)
        wrong = [key.hex() for key, page_id in there if host_pages.key(page_id) != key]
        raise AccountingError(
            f"group {group}: {len(keys)} pages are named, of which some are of other groups, or "
            f"hold something else: {wrong}"
        )
    _check_evictable(group, evictable, host_pages)


def _check_evictable(group: int, evictable: Items, host_pages: HostPages) -> None:
    is_ready = host_pages.are_all(evictable, HostPageState.READY)
    if not is_ready or host_pages.num_readers_of(evictable).any():
        pages = ", ".join(f"{page} {host_pages.state(page).name}" for page in evictable.tolist())
        raise AccountingError(
            f"group {group}: pages are evictable that are not READY, or are read: {pages}"
        )
