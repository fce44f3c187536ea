"""Counts a lane's GPU pages by who names them, apart from the counts that the lane itself keeps."""

from collections import Counter

from raydix.runtime.scheduler.ranks.lane import Lane


def check_pages(lane: Lane) -> None:
    """Each page of each pool is free, in quarantine, in the tree, or one request's or promotion's.

    A table names no page that is neither its request's own nor in the tree.
    """
    for group in range(lane.settings.num_groups):
        pool = lane.l1.pools.group(group)
        cached = Counter(
            page for node in lane.l1.tree.forest for page in node.page_ids[group].tolist() if page
        )
        own = _own_pages(lane, group, cached)

        owners = cached + own
        assert not owners or max(owners.values()) == 1, f"group {group}: {owners} have two owners"
        num_others = pool.num_free + pool.num_quarantined
        assert len(owners) + num_others == pool.num_pages, (
            f"group {group}: {pool.num_pages} pages, {len(cached)} cached, {len(own)} of requests, "
            f"{num_others} free or in quarantine"
        )


def _own_pages(lane: Lane, group: int, cached: Counter[int]) -> Counter[int]:
    """Pages of requests and promotions that the tree does not hold."""
    own: Counter[int] = Counter()
    for promotion in lane.promotions.all():
        own.update(promotion.part[group].tolist())

    for name, request in lane.running.items():
        unhealed = request.unhealed[group]
        for place, page in enumerate(request.table.pages(0)[group].tolist()):
            if page and (place >= request.num_held_pages or place in unhealed):
                own[page] += 1
            elif page:
                assert page in cached, (
                    f"group {group}: the tree has lost page {page}, which {name} reads at {place}"
                )
    return own
