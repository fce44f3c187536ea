"""Which pages are copied from L1 to L2, and when."""

import itertools

from raydix.ids import PageKey
from raydix.runtime.cache.radix_tree import Victim
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.transfers import Backup

_MAX_PAGES_PER_PLAN = 256
_MAX_DIRTY_PAGES = 65_536
_MAX_INSPECTED_PAGES = 256
"""Of those that go next, per step."""
_PAGES_PER_CLEAN_PAGE = 16
"""One page in so many is kept free or clean ahead of need, and what one step may take up to a
quarter of all.
"""


def offer_new_pages(replica: Replica, lane: Lane, pages: list[tuple[PageKey, int]]) -> None:
    """Pages have just been published in L1."""
    if replica.settings.write_policy is WritePolicy.WRITE_THROUGH:
        for key, page_id in pages:
            _mark_dirty(replica, lane, key, page_id)


def count_use(replica: Replica, lane: Lane, request: RequestState) -> None:
    """Count each page of a request's published prefix once: those that enough requests have used
    are worth a copy.
    """
    if replica.settings.write_policy is not WritePolicy.WRITE_THROUGH_SELECTIVE:
        return
    start, stop = request.num_counted_pages, request.num_held_pages
    keys = request.keys(stop, replica.settings.page_size)[start * KEY_BYTES :]
    request.num_counted_pages = max(start, stop)
    for key, page_id in zip(split_keys(keys), request.table[start:stop], strict=True):
        lane.num_uses[key] = lane.num_uses.get(key, 0) + 1
        if lane.num_uses[key] >= replica.settings.write_threshold:
            _mark_dirty(replica, lane, key, page_id)


def clean_ahead(replica: Replica, lane: Lane) -> None:
    """Back up what will be evicted next, if L2 does not hold it (any more), before its page is
    needed.
    """
    settings = replica.settings
    per_step = -(-settings.prefill_budget_tokens // settings.page_size)
    low_water = max(
        settings.num_pages // _PAGES_PER_CLEAN_PAGE, min(per_step, settings.num_pages // 4), 1
    )
    wanted = low_water - lane.pool.num_free
    if wanted <= 0 or not replica.host.is_usable:
        return

    for short in list(itertools.islice(lane.lost, _MAX_INSPECTED_PAGES)):
        lane.lost.discard(short)
        entry = lane.inspected.get(short)
        if entry is not None:
            _clean(replica, lane, *entry)

    # The tree knows how far it was inspected, so that a step looks at what is new ahead, and at so
    # much at most.
    num_left = max(_MAX_INSPECTED_PAGES, 2 * per_step)
    for victim in lane.tree.inspect_ahead(wanted):
        num_left -= victim.num_pages
        for key, page_id in zip(split_keys(victim.keys), victim.page_ids[0].tolist(), strict=True):
            lane.inspected[key[:MIRROR_KEY_BYTES]] = key, page_id
            _clean(replica, lane, key, page_id)
        if num_left <= 0 or len(lane.dirty) >= _MAX_DIRTY_PAGES:
            return


def _clean(replica: Replica, lane: Lane, key: PageKey, page_id: int) -> None:
    is_selective = replica.settings.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE
    if not is_selective or lane.num_uses.get(key, 0) >= replica.settings.write_threshold:
        _mark_dirty(replica, lane, key, page_id)


def back_up_all(replica: Replica, lane: Lane) -> None:
    """Before a clean stop: what `write_back` has kept in L1 alone goes to L2, heads of chains
    first.
    """
    if replica.settings.write_policy is not WritePolicy.WRITE_BACK:
        return
    for run in lane.tree.unlocked():
        for key, page_id in zip(split_keys(run.keys), run.page_ids[0].tolist(), strict=True):
            _mark_dirty(replica, lane, key, page_id)


def count_dropped(replica: Replica, victims: list[Victim]) -> None:
    """Evicted pages that L2 does not hold are lost, which is counted and never waited for."""
    for victim in victims:
        replica.counters["evicted_pages"] += victim.num_pages
        if replica.settings.has_host_memory:
            for start in range(0, len(victim.keys), KEY_BYTES):
                if not replica.host.has(victim.keys[start : start + KEY_BYTES]):
                    replica.counters["dropped_pages"] += 1


def start_backups(replica: Replica, lane: Lane) -> list[Backup]:
    """Take dirty pages, oldest first, for which there are granted host pages."""
    host = replica.host
    if not lane.dirty or not host.is_usable or not host.num_granted:
        return []
    assert host.connection is not None
    keys: list[PageKey] = []
    page_ids: list[int] = []
    limit = min(_MAX_PAGES_PER_PLAN, host.num_granted)
    while lane.dirty and len(keys) < limit:
        key = next(iter(lane.dirty))
        page_id = lane.dirty.pop(key)
        if not host.has(key):
            keys.append(key)
            page_ids.append(page_id)
    if not keys:
        return []
    lane.backing_up.update(keys)
    host_page_ids, generations = host.take_pages(len(keys))
    backup = Backup(
        transfer_id=lane.next_transfer_id(),
        page_ids=int32_array(page_ids),
        host_page_ids=host_page_ids,
        generations=generations,
        host_connection=host.connection,
        keys=b"".join(keys),
    )
    return [backup]


def _mark_dirty(replica: Replica, lane: Lane, key: PageKey, page_id: int) -> None:
    if (
        not replica.settings.has_host_memory
        or key in lane.dirty
        or key in lane.backing_up
        or replica.host.has(key)
    ):
        return
    if len(lane.dirty) >= _MAX_DIRTY_PAGES:
        replica.counters["backup_queue_full"] += 1
        return
    lane.dirty[key] = page_id
