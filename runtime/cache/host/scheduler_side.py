"""HostMemory's side of one connection to a Scheduler."""

from collections import Counter
from collections.abc import Sequence

from raydix.ids import ConnectionId, SchedulerName
from raydix.runtime.cache.host.grants import HostGrants
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.leases import HostLeases
from raydix.runtime.cache.host.mirror import HostMirror
from raydix.runtime.messages.host import StorageStatus


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
