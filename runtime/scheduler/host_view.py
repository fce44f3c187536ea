"""What the Scheduler knows of L2: a mirror of its keys, granted pages, and leases that were asked for."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydix.ids import LeaseId, RequestId
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import (
    KEY_BYTES,
    MIRROR_KEY_BYTES,
    CopiesDrained,
    LookupProgress,
    MirrorUpdate,
    PagesGranted,
    split_keys,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWanted:
    """Run `run` of a request asked for a lease at `asked_s`."""

    request_id: RequestId
    run: int
    asked_s: float


class HostView:
    """Owns: the Scheduler's hints about HostMemory. Only a lease is truth.

    HostMemory is usable while it is attached and answers. After it was lost, copies that it ordered may still be in
    flight; `drained` tells the new one when they are not, and only then does it grant pages.
    """

    def __init__(self) -> None:
        self.incarnation: int | None = None
        self.is_silent = False
        self.has_storage: bool | None = None
        """Whether L3 is in use; None until HostMemory has said so. Without L3 nobody waits for pages on their way."""
        self.leases: dict[LeaseId, LeaseWanted] = {}
        """Leases asked for and not yet answered."""
        self._reports_due: Counter[RequestId] = Counter()
        self._mirror: set[bytes] = set()
        self._stock: deque[tuple[int, int]] = deque()
        self._is_drained = False

    @property
    def is_usable(self) -> bool:
        """Lookups, leases and backups make sense now."""
        return self.incarnation is not None and not self.is_silent

    @property
    def num_keys(self) -> int:
        """Pages in L2, as far as is known."""
        return len(self._mirror)

    @property
    def num_granted(self) -> int:
        """Free host pages in hand."""
        return len(self._stock)

    def attach(self, incarnation: int) -> None:
        """A HostMemory said hello; it will send its keys and, after `drained`, pages."""
        self.detach()
        self.incarnation = incarnation
        self.is_silent = False

    def detach(self) -> None:
        """HostMemory is gone: with it go its keys, grants and leases."""
        self.incarnation = None
        self.has_storage = None
        self._is_drained = False
        self._mirror.clear()
        self._stock.clear()
        self.leases.clear()
        self._reports_due.clear()

    def drained(self, is_copying: bool) -> CopiesDrained | None:
        """What to tell a newly attached HostMemory, once no older copy is in flight; None if nothing is due."""
        if self.incarnation is None or self._is_drained or is_copying:
            return None
        self._is_drained = True
        return CopiesDrained(host_incarnation=self.incarnation)

    def has(self, key: bytes) -> bool:
        """Is this page READY in L2, as far as is known?"""
        return key[:MIRROR_KEY_BYTES] in self._mirror

    def count_resident(self, keys: bytes, start: int, stop: int) -> int:
        """How many pages from `start` on, without a gap and before `stop`, are READY in L2 as far as is known."""
        mirror = self._mirror
        for index in range(start, stop):
            if keys[index * KEY_BYTES : index * KEY_BYTES + MIRROR_KEY_BYTES] not in mirror:
                return index - start
        return stop - start

    def note_lookup(self, request_id: RequestId) -> None:
        """A lookup was sent: it ends with one final report, cancelled or not."""
        self._reports_due[request_id] += 1

    def is_current(self, report: LookupProgress) -> bool:
        """Take a report. False: it concerns an earlier lookup under the same request id."""
        num_due = self._reports_due[report.request_id]
        if report.is_final:
            self._reports_due[report.request_id] -= 1
        if self._reports_due[report.request_id] <= 0:
            del self._reports_due[report.request_id]
        return num_due == 1

    def mirror(self, update: MirrorUpdate) -> None:
        """Follow HostMemory's changes."""
        self._mirror.difference_update(split_keys(update.dropped, MIRROR_KEY_BYTES))
        self._mirror.update(split_keys(update.ready, MIRROR_KEY_BYTES))

    def stock(self, grant: PagesGranted) -> None:
        """Take granted free host pages."""
        self._stock.extend(zip(grant.host_page_ids.tolist(), grant.generations.tolist(), strict=True))

    def take_pages(self, num_pages: int) -> tuple[Int32Array, Int32Array]:
        """Ids and generations of `num_pages` granted pages, fewer if there are not so many."""
        taken = [self._stock.popleft() for _ in range(min(num_pages, len(self._stock)))]
        columns = np.array(taken, dtype=np.int32).reshape(-1, 2)
        return int32_array(columns[:, 0]), int32_array(columns[:, 1])

    def overdue_leases(self, patience_s: float, now_s: float) -> Sequence[LeaseId]:
        """Leases that have been unanswered for `patience_s` or longer."""
        return [lease_id for lease_id, wanted in self.leases.items() if wanted.asked_s + patience_s <= now_s]
