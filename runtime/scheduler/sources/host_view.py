"""What the Scheduler knows of L2: a mirror of its keys, and granted pages."""

from collections import deque

import numpy as np

from raydix.ids import ConnectionId
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import PagesGranted, StorageStatus
from raydix.runtime.scheduler.sources.mirror import Mirror


class HostView:
    """Owns: what the Scheduler believes of HostMemory. Only a lease is certain.

    HostMemory is usable while it is attached and answers. When it is lost, copies to and from its
    pages may still be in flight; the next one grants no page until it is told that they have ended.
    """

    def __init__(self, num_groups: int) -> None:
        """Know nothing yet of a HostMemory with `num_groups` KV groups."""
        self.connection: ConnectionId | None = None
        """The present link to HostMemory; what an earlier one granted or leased is void."""
        self.l2: str | None = None
        """What tells the L2 from all others, if anybody is to know."""
        self.is_silent = False
        self.has_storage: bool | None = None
        """Whether L3 is in use; None until HostMemory has said so. Without it no request waits."""
        self.min_l3_tokens = 0
        """The shortest run, in tokens, for which L3 is asked."""
        self.l3_answer_s = 0.0
        """The least time in seconds that L3 takes to answer, as far as is known."""
        self.is_drained = False
        """Whether HostMemory was told that no copy of an earlier connection is in flight."""

        self.keys = Mirror(num_groups)
        """The pages of L2, as far as is known."""
        self.objects = Mirror(num_groups)
        """The pages of L3, as HostMemory has last seen them there; it tells only if it is to."""
        self._stocks: list[deque[tuple[int, int]]] = [deque() for _ in range(num_groups)]

    @property
    def is_usable(self) -> bool:
        """Whether lookups, leases and backups make sense now."""
        return self.connection is not None and not self.is_silent

    def num_granted(self, group: int) -> int:
        """The number of free host pages of a KV group that were granted and not used yet."""
        return len(self._stocks[group])

    def attach(self, connection: ConnectionId, l2: str | None = None) -> None:
        """Attach a HostMemory, which will send its keys and, once copies are drained, pages."""
        self.detach()
        self.connection = connection
        self.l2 = l2
        self.is_silent = False

    def detach(self) -> list[set[bytes]]:
        """HostMemory is gone: with it go its keys, grants and leases.

        Returns the keys of each group, for the caller to free: all at once takes 40 ms a million.
        """
        self.connection = self.l2 = None
        self.has_storage = None
        self.is_drained = False
        for stock in self._stocks:
            stock.clear()
        return self.keys.take_all() + self.objects.take_all()

    def fall_silent(self) -> None:
        """Note that HostMemory is silent: the engine runs as if without L2 until it is heard."""
        self.is_silent = True

    def hear(self) -> None:
        """Note that HostMemory has said something."""
        self.is_silent = False

    def note_storage(self, status: StorageStatus) -> None:
        """Note what HostMemory says of L3: whether there is one, and what to expect of it."""
        self.has_storage = status.is_in_use
        self.min_l3_tokens = status.min_tokens
        self.l3_answer_s = status.answer_s

    def note_drained(self) -> None:
        """Note that HostMemory was told that no copy of an earlier connection is in flight."""
        self.is_drained = True

    def stock(self, grant: PagesGranted) -> None:
        """Take granted free host pages."""
        self._stocks[grant.group].extend(
            zip(grant.host_page_ids.tolist(), grant.generations.tolist(), strict=True)
        )

    def take_pages(self, group: int, num_pages: int) -> tuple[Int32Array, Int32Array]:
        """Ids and generations of `num_pages` granted pages, fewer if there are not so many."""
        stock = self._stocks[group]
        taken = [stock.popleft() for _ in range(min(num_pages, len(stock)))]
        columns = np.array(taken, dtype=np.int32).reshape(-1, 2)
        return int32_array(columns[:, 0]), int32_array(columns[:, 1])
