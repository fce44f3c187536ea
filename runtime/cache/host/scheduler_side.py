"""HostMemory's side of one connection to a Scheduler."""

from collections import Counter
from collections.abc import Sequence

from raydix.ids import ConnectionId, HostPageId, SchedulerName
from raydix.runtime.cache.host.grants import HostGrants
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.host.mirror import HostMirror
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import CommitPages, LeasePages, PagesLeased, StorageStatus


class SchedulerSide:
    """Owns: what one Scheduler has of L2 over one connection, and what it was told of L3."""

    def __init__(
        self,
        connection: ConnectionId,
        name: SchedulerName,
        *,
        index: HostIndex,
        fair_share: Sequence[int],
        piece_pages: int,
        counters: Counter[str],
    ) -> None:
        """Start with a Scheduler that has nothing and was told nothing."""
        self.connection = connection
        self.name = name
        self.grants = HostGrants(index, fair_share, counters)
        self.leases = HostLeases(index)
        self.mirror = HostMirror(index, piece_pages)
        self._index = index
        self._counters = counters
        self._is_drained = False
        self._known_status: StorageStatus | None = None

    @property
    def is_drained(self) -> bool:
        """Whether no copy is in flight that was ordered over an earlier connection."""
        return self._is_drained

    def drain(self) -> None:
        """Note that no copy is in flight that was ordered over an earlier connection."""
        self._is_drained = True

    def learn(self, status: StorageStatus) -> bool:
        """Note what the Scheduler is told of L3. Returns whether it did not know that yet."""
        is_news = self._known_status != status
        self._known_status = status
        return is_news

    def lease(self, message: LeasePages) -> PagesLeased:
        """Pin pages for reading; returns the answer."""
        runs = self.leases.lease(message.lease_id, split_keys(message.keys), message.starts)
        return PagesLeased(
            lease_id=message.lease_id,
            host_page_ids=tuple(map(int32_array, runs)),
            generations=tuple(map(self._index.generations_of, runs)),
        )

    def commit(self, message: CommitPages) -> list[HostPageId]:
        """Publish granted pages that are filled; returns those that are new to L2, in order."""
        columns = message.host_page_ids.tolist(), message.generations.tolist()
        entries = list(zip(split_keys(message.keys), *columns, strict=True))
        # The last page is published first, so that a chain in L2 loses its tail first.
        published = []
        for key, page_id, generation in reversed(entries):
            if not self.grants.take_back(page_id, generation):
                continue
            if self._index.publish(page_id, key):
                published.append(HostPageId(page_id))
            else:
                self._counters["duplicate_commits"] += 1
        self._counters["pages_committed"] += len(published)
        return published[::-1]
