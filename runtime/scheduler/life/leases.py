"""What becomes of leases: whoever waited for one runs, or loads ahead, on what was leased."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from raydix.ids import LeaseId
from raydix.runtime.cache.page_pools import PageIds, num_pages_of, pages_between
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import PagesLeased
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Load, Promotion
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.sources.lease_wanted import LeaseWanted


@dataclass(frozen=True, slots=True)
class _LeasedCopies:
    """Copies that a lease allows: per KV group, GPU pages and the host pages to load them from."""

    page_ids: PageIds
    host_page_ids: PageIds
    generations: PageIds


class LeaseAnswers:
    """Takes in which host pages were leased, and gives up waiting for leases."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        lanes: Sequence[Lane],
        source: KvSource,
        life: Transitions,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._source = source
        self._life = life

    def take(self, message: PagesLeased) -> None:
        """Take HostMemory's answer to a lease that was wanted, perhaps by somebody who is gone."""
        wanted = self._source.take_lease(message.lease_id)
        connection = self._source.view.connection
        assert connection is not None, "only an attached HostMemory answers"
        copies = None if wanted is None else self._copies_of_lease(wanted, message)
        if wanted is None or copies is None:
            self._source.release_lease(message.lease_id, connection)
            return

        lane = self._lanes[wanted.asker.lane]
        load = Load(
            transfer_id=lane.in_flight.new_transfer_id(),
            page_ids=copies.page_ids,
            host_page_ids=copies.host_page_ids,
            generations=copies.generations,
            host_connection=connection,
            lease_id=message.lease_id,
            request_id=wanted.asker.request_id,
        )
        self._life.load(lane, wanted.asker, load)
        lane.in_flight.add_load(load)

    def give_up(self, lease_id: LeaseId) -> None:
        """Give up a lease that HostMemory will not grant any more, or grants too late."""
        wanted = self._source.take_lease(lease_id)
        assert wanted is not None, "only a lease that is wanted is given up"
        if not wanted.is_current(lease_id):
            return
        match wanted.asker:
            case Promotion():
                self._lanes[wanted.asker.lane].promotions.drop_part(wanted.asker)
            case RequestState():
                self._run_with_fewer(wanted.asker, None)
            case _:
                assert_never(wanted.asker)

    def _copies_of_lease(self, wanted: LeaseWanted, message: PagesLeased) -> _LeasedCopies | None:
        """The copies that a lease is used for; None if it is empty, or nobody waits for it.

        The request of a lease for a run runs from now on; a promotion without pages ends.
        """
        if not wanted.is_current(message.lease_id):
            return None
        promotion = wanted.asker
        if isinstance(promotion, RequestState):
            return self._run_with_leased(promotion, message)

        num_leased = num_pages_of(message.host_page_ids)
        if not num_leased:
            self._lanes[promotion.lane].promotions.drop_part(promotion)
            return None
        page_ids = pages_between(promotion.part, 0, num_leased)
        return _LeasedCopies(page_ids, message.host_page_ids, message.generations)

    def _run_with_leased(self, request: RequestState, message: PagesLeased) -> _LeasedCopies | None:
        """Let a request that waited for its lease run, on what was leased; returns the copies."""
        loads = request.start.loads
        wanted = [request.start.num_pages - pages[0] if pages else 0 for pages in loads]
        leased = [len(ids) for ids in message.host_page_ids]
        if wanted != leased:
            return self._run_with_fewer(request, message)

        self._life.begin(request, request.start)
        return _LeasedCopies(
            request.table.at(loads),
            tuple(map(_pick, message.host_page_ids, loads)),
            tuple(map(_pick, message.generations, loads)),
        )

    def _run_with_fewer(
        self, request: RequestState, message: PagesLeased | None
    ) -> _LeasedCopies | None:
        """L2 has dropped pages meanwhile, or is gone: the request begins behind fewer of them.

        GPU pages that were kept for those go back. Where there are windows it is looked at anew,
        for the leased run may end where no window does.
        """
        if self._settings.has_windows:
            self._life.requeue(request)
            return None

        held = request.num_held_pages
        num_leased = 0 if message is None else num_pages_of(message.host_page_ids)
        start = request.shorten_start(held + num_leased)
        self._lanes[request.lane].cut_table(request, start.num_pages)
        self._life.begin(request, start)
        if message is None or not num_leased:
            return None
        page_ids = request.table.pages(held, start.num_pages)
        return _LeasedCopies(page_ids, message.host_page_ids, message.generations)


def _pick(column: Int32Array, pages: Sequence[int]) -> Int32Array:
    """The entries of these pages in a column of a leased run, which begins with the first."""
    return column[np.asarray(pages, dtype=np.intp) - pages[0]] if len(pages) else column[:0]
