"""How much of a chain L1 and L2 hold together, over all KV groups. A pure function."""

from raydix.runtime.cache.kv_match import KvMatch, match_groups
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.host_view import HostView

_L1, _L2, _NOWHERE = (
    bytes([source]) for source in (PageSource.L1, PageSource.L2, PageSource.NOT_FOUND)
)


def match_tiers(
    layout: KvLayout, host: HostView, keys: bytes, *, num_l1_pages: int, num_pages: int
) -> KvMatch:
    """The longest usable prefix of the first `num_pages` pages of a chain, as far as is known.

    L1 holds the first `num_l1_pages` in every group; `keys` are those of all pages.
    """
    stop = num_pages
    num_found: list[int] = []
    for group, kv_group in enumerate(layout.groups):
        found = num_l1_pages + host.count_resident(group, keys, num_l1_pages, stop)
        num_found.append(found)
        # No group is of use past a page that another one lacks, if that needs all pages.
        if kv_group.kind is not GroupKind.WINDOW:
            stop = found

    availability = [
        _L1 * num_l1_pages + _L2 * (found - num_l1_pages) + _NOWHERE * (num_pages - found)
        for found in num_found
    ]
    return match_groups(layout.groups, availability, page_size=layout.page_size)
