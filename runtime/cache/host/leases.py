"""Leases: pins of host pages that last until their holder ends them."""

from collections import Counter
from collections.abc import Sequence

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId, PageKey
from raydix.runtime.cache.host.index import HostIndex


class HostLeases:
    """Owns: the pages that each lease pins."""

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self._held: dict[LeaseId, list[HostPageId]] = {}

    @property
    def num_leases(self) -> int:
        """The number of leases that have not ended."""
        return len(self._held)

    @property
    def num_pins(self) -> int:
        """The number of pins of all leases; O(leases)."""
        return sum(map(len, self._held.values()))

    def lease(
        self, lease_id: LeaseId, keys: Sequence[PageKey], starts: Sequence[int]
    ) -> list[list[HostPageId]]:
        """Pin `keys[starts[g]:]` in each group g, until `end`.

        All runs end before the first page that is not READY in one of them. An empty lease must be
        ended, too. Returns the pages of each group.
        """
        if lease_id in self._held:
            raise AccountingError(f"lease {lease_id} is taken twice")
        if len(starts) != self._index.num_groups:
            raise AccountingError(
                f"lease {lease_id} is for {len(starts)} KV groups; L2 has {self._index.num_groups}"
            )

        runs: list[list[HostPageId]] = []
        end = len(keys)
        for group, start in enumerate(starts):
            run = self._ready_prefix(group, keys[start:end])
            runs.append(run)
            # A run that starts at the end or behind it has no page, but does not move the end.
            if start < end:
                end = start + len(run)

        # A group's run is cut at its own end and at those of the groups before it by now, but not
        # yet at those of the groups after it.
        for group, (run, start) in enumerate(zip(runs, starts, strict=True)):
            del run[max(0, end - start) :]
            self._index.pin_all(group, run)
        self._held[lease_id] = [page_id for run in runs for page_id in run]
        return runs

    def _ready_prefix(self, group: int, keys: Sequence[PageKey]) -> list[HostPageId]:
        found = self._index.find_all(group, keys)
        end = found.index(None) if None in found else len(found)
        return [page_id for page_id in found[:end] if page_id is not None]

    def end(self, lease_id: LeaseId) -> None:
        """Unpin what a lease holds."""
        self._index.unpin(self.detach(lease_id))

    def detach(self, lease_id: LeaseId) -> list[HostPageId]:
        """Forget a lease whose holder is gone; the caller unpins its pages later."""
        held = self._held.pop(lease_id, None)
        if held is None:
            raise AccountingError(f"lease {lease_id} is unknown; {len(self._held)} leases are held")
        return held

    def detach_all(self) -> list[HostPageId]:
        """Forget all leases; the caller unpins their pages later."""
        held = [page_id for page_ids in self._held.values() for page_id in page_ids]
        self._held.clear()
        return held

    def check(self) -> None:
        """Raises AccountingError unless leased pages are READY, with a reader for each lease."""
        num_leases = Counter(page_id for held in self._held.values() for page_id in held)
        for page_id, num_expected in num_leases.items():
            num_readers = self._index.num_readers_of(page_id)
            if self._index.name(page_id) is None or num_readers < num_expected:
                raise AccountingError(
                    f"host page {page_id} is in {num_expected} leases but "
                    f"{self._index.state(page_id).name} with {num_readers} readers"
                )
