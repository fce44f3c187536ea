"""Which loads and backups the next plans start, beside rows or alone."""

from collections.abc import Sequence

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.scheduler.life.load_users import user_of
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.transfers import Backup, Load
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.draft import Draft

_MAX_BACKUPS = 8
"""The most copies to L2 that one plan begins, as far as L2 has granted pages."""


class CopyDrafter:
    """Drafts the loads and backups of a step group's next plans."""

    def __init__(self, *, num_lanes: int, requests: Requests, source: KvSource) -> None:
        self._num_others = num_lanes - 1
        self._requests = requests
        self._source = source

    def draft_copies(
        self, drafts: Sequence[tuple[Lane, Draft]], now_s: float, *, num_row_plans: int
    ) -> None:
        """Add copies to drafts whose rows are known; `num_row_plans`: those in flight."""
        computing = [lane for lane, draft in drafts if draft.has_rows]
        for lane in computing:
            # Not when idle: two tiers that are both full would copy pages to and fro.
            lane.backups.clean_ahead(lane.l1.tree, num_free=lane.l1.num_free())

        has_rows = bool(computing)
        for lane, draft in drafts:
            if not (lane.in_flight.ready_loads or len(lane.backups)):
                continue
            loads = self._take_loads(lane)
            # While rows are in flight, backups wait for the next: they need no plan of their own.
            is_beside_rows = has_rows and lane.backups.is_worth_a_copy(now_s)
            may_copy = is_beside_rows or not num_row_plans
            backups = self._take_backups(lane, now_s) if may_copy else []
            draft.add_copies(loads, backups)

    def _take_loads(self, lane: Lane) -> list[Load]:
        """Take the leased loads whose requests still want them; other leases go back."""
        wanted: list[Load] = []
        for load in lane.in_flight.take_ready_loads():
            # It may have ended, or started over, with or after the event that brought the lease.
            if user_of(load, lane, self._requests) is not None:
                wanted.append(load)
            else:
                self._source.release_lease(load.lease_id, load.host_connection)
        return wanted

    def _take_backups(self, lane: Lane, now_s: float) -> list[Backup]:
        """Make copies to L2 of the oldest dirty pages for which there is room in L2.

        A long step computes more than one copy holds: what is left would wait for the next plan.
        """
        host = self._source.view
        backups: list[Backup] = []
        while len(backups) < _MAX_BACKUPS and (backup := _take_backup(lane, host, now_s)):
            backups.append(backup)
            # Each other lane is left as much: it may be drafted behind this one.
            others = self._num_others
            sizes = enumerate(map(len, backup.page_ids))
            if others and any(host.num_granted(group) < (others + 1) * n for group, n in sizes):
                break
        return backups


def _take_backup(lane: Lane, host: HostView, now_s: float) -> Backup | None:
    """Make one copy to L2 of the oldest dirty pages; None: there are none, or no room."""
    taken = lane.backups.take(now_s)
    if not any(keys for keys, _ in taken):
        return None
    assert host.connection is not None, "an attached HostMemory has granted the pages"
    grants = [host.take_pages(group, len(page_ids)) for group, (_, page_ids) in enumerate(taken)]
    return Backup(
        transfer_id=lane.in_flight.new_transfer_id(),
        page_ids=tuple([int32_array(page_ids) for _, page_ids in taken]),
        host_page_ids=tuple([host_page_ids for host_page_ids, _ in grants]),
        generations=tuple([generations for _, generations in grants]),
        host_connection=host.connection,
        keys=tuple([b"".join(keys) for keys, _ in taken]),
    )
