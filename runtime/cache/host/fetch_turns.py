"""The order in which the pages that lookups want are read from L3."""

import heapq
from collections.abc import Iterable

from raydix.ids import ConnectionId, HostPageId
from raydix.runtime.cache.host.lookup_pages import LookupPages
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.messages.host import PageSource, Urgency

_PIECE = 2048
"""The number of pages that lookups take with one event: so many take a few ms."""
_LOOK_PAGES = 8
"""The number of pages that a look at one lookup counts for."""


class FetchTurns:
    """Owns: the lookups that wait for their turn to read, and how much open hints have read.

    The oldest lookup's pages are read first, since a Scheduler asks in the order of its queue;
    hints go last and leave half of the reads.
    """

    def __init__(
        self,
        settings: StorageSettings,
        staged: StagedPages,
        orders: StorageOrders,
        reads: HostReads,
        pages: LookupPages,
    ) -> None:
        self._settings = settings
        self._staged = staged
        self._orders = orders
        self._reads = reads
        self._pages = pages

        self._turns: dict[Urgency, list[tuple[int, OpenLookup]]] = {
            urgency: [] for urgency in Urgency
        }
        """A heap of arrival numbers and lookups for each urgency."""
        self._num_hint_reads = [0] * len(staged.max_pages)
        """Per KV group, the pages that reads were ordered for, for all open hints together."""

    def queue(self, lookup: OpenLookup) -> None:
        """Queue a lookup that wants pages."""
        if lookup.join_queue():
            heapq.heappush(self._turns[lookup.urgency], (lookup.arrival, lookup))

    def end(self, lookup: OpenLookup) -> None:
        """Note that a lookup is final; it may still stand in the queue."""
        if lookup.urgency is Urgency.HINT:
            for group, num_read in enumerate(lookup.num_read):
                self._num_hint_reads[group] -= num_read

    def forget(self, connection: ConnectionId, lookups: Iterable[OpenLookup]) -> None:
        """Forget the lookups of a connection that is gone. `lookups`: those that are open."""
        if any(self._num_hint_reads):
            for lookup in lookups:
                self.end(lookup)
        for turns in self._turns.values():
            turns[:] = [turn for turn in turns if turn[1].connection != connection]
            heapq.heapify(turns)

    @property
    def is_empty(self) -> bool:
        """Whether no lookup stands in the queue, not even one that is final."""
        return not any(self._turns.values())

    @property
    def has_work(self) -> bool:
        """Whether `dispatch` would go on."""
        return any(map(self._may_go_on, Urgency))

    def _may_go_on(self, urgency: Urgency) -> bool:
        turns = self._turns[urgency]
        # While nothing can be read all that wait fail, and none of them waits for a read.
        if not turns or not self._orders.is_readable:
            return bool(turns)
        max_batches = -(-self._settings.max_read_batches // (1 + urgency))
        return self._reads.num_current < max_batches and not self._is_coming(turns[0][1])

    def _is_coming(self, lookup: OpenLookup) -> bool:
        """Whether the page wanted next is about to come, and very many wait for it already."""
        group, index = lookup.next_wanted() or (0, None)
        return index is not None and self._reads.is_crowded(group, lookup.keys[index])

    def dispatch(self, now_s: float) -> None:
        """Order reads while not too many are in flight.

        Without room in L2 or without L3 thousands may fail, some of them at a time; and as many may
        find their pages here.
        """
        num_left = _PIECE
        for urgency, turns in self._turns.items():
            while num_left > 0 and self._may_go_on(urgency):
                num_left -= _LOOK_PAGES
                lookup = turns[0][1]
                if (wanted := lookup.next_wanted()) is not None:
                    group, _ = wanted
                    if self._orders.is_readable:
                        num_left -= self._read_some(lookup, group, now_s)
                    else:
                        self._pages.fail_unread(lookup, group, PageSource.IO_ERROR)
                if lookup.next_wanted() is None:
                    heapq.heappop(turns)
                    lookup.leave_queue()

    def _read_some(self, lookup: OpenLookup, group: int, now_s: float) -> int:
        """Take a group's wanted pages until a batch is full; returns how many were taken.

        Pages that are here by now, or being read for another lookup, take no place in it.
        """
        indices: list[int] = []
        page_ids: list[HostPageId] = []
        num_joined = 0
        has_room = True
        while has_room and len(indices) < self._reads.batch_pages[group]:
            index = lookup.take_wanted(group)
            if index is None:
                break
            if self._reads.is_crowded(group, lookup.keys[index]):
                # Of a long chain the first pages may be here while later ones are being read.
                lookup.want(group, index)
                break
            if self._pages.join(lookup, group, index):
                num_joined += 1
                continue

            page_id = None if self._is_hint_full(lookup, group) else self._reads.allocate(group)
            if page_id is None:
                lookup.want(group, index)
                has_room = False
            else:
                indices.append(index)
                page_ids.append(page_id)
                lookup.count_read(group)
                self._num_hint_reads[group] += lookup.urgency is Urgency.HINT

        if indices:
            self._reads.start(lookup, group, indices, page_ids, now_s)
        if not has_room:
            # This may also cancel the read that was just ordered: half a window is of no use.
            self._pages.fail_unread(lookup, group, PageSource.NO_HOST_PAGE)
        return num_joined + len(indices)

    def _is_hint_full(self, lookup: OpenLookup, group: int) -> bool:
        """Whether the open hints together have read as much of a group as may be staged."""
        if lookup.urgency is not Urgency.HINT:
            return False
        return self._num_hint_reads[group] >= self._staged.max_pages[group]
