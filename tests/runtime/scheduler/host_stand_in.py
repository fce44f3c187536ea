"""A stand-in for HostMemory, with as many pages of one KV group as are wanted and no L3."""

from typing import Any

from raydix.ids import LeaseId, LookupId
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import PageSource
from tests.runtime.scheduler.keys import mirror_keys


class HostStandIn:
    """Owns: which keys are READY, which leases run, and which lookups have not ended."""

    def __init__(self) -> None:
        self.ready: set[bytes] = set()
        self.leases: dict[LeaseId, int] = {}
        """Pages of each."""
        self._open_lookups: set[LookupId] = set()
        self._num_pages = 0

    def clear(self) -> None:
        """Its process ended, and all that it held is lost."""
        for state in (self.ready, self.leases, self._open_lookups):
            state.clear()

    def grant(self, num_pages: int) -> host.PagesGranted:
        """Hand out free host pages."""
        first = self._num_pages
        self._num_pages += num_pages
        pages = int32_array(range(first, first + num_pages))
        return host.PagesGranted(host_page_ids=pages, generations=pages)

    def report(self, lookup_id: LookupId, sources: list[PageSource]) -> host.LookupProgress:
        """Report on a chain; that is final unless a page is PENDING."""
        is_final = PageSource.PENDING not in sources
        self._open_lookups.discard(lookup_id)
        if not is_final:
            self._open_lookups.add(lookup_id)
        return host.LookupProgress(
            lookup_id=lookup_id, sources=(bytes(sources),), is_final=is_final
        )

    def answer(self, message: Any) -> list[host.FromHost]:
        """Take a message of the Scheduler; returns what is said to it."""
        match message:
            case host.Lookup():
                return [self._look_up(message)]
            case host.CancelLookup() if message.lookup_id in self._open_lookups:
                return [self.report(message.lookup_id, [PageSource.CANCELLED])]
            case host.LeasePages():
                return [self._lease(message)]
            case host.ReleaseLeases() | host.AbandonPages():
                for lease_id in message.lease_ids:
                    del self.leases[lease_id]
                return []
            case host.CommitPages():
                self.ready.update(split_keys(message.keys))
                ready = host.MirrorUpdate(ready=mirror_keys(message.keys))
                return [ready, self.grant(len(message.host_page_ids))]
            case host.CopiesDrained():
                return [self.grant(64)]
            case _:
                return []

    def _look_up(self, lookup: host.Lookup) -> host.LookupProgress:
        sources = [
            PageSource.L2 if key in self.ready else PageSource.NOT_FOUND
            for key in split_keys(lookup.keys)
        ]
        (num_l1_pages,) = lookup.num_l1_pages
        sources[:num_l1_pages] = [PageSource.L1] * num_l1_pages
        return self.report(lookup.lookup_id, sources)

    def _lease(self, wanted: host.LeasePages) -> host.PagesLeased:
        keys = split_keys(wanted.keys)
        missing = [index for index, key in enumerate(keys) if key not in self.ready]
        num_leased = missing[0] if missing else len(keys)
        self.leases[wanted.lease_id] = num_leased

        pages = int32_array(range(1000, 1000 + num_leased))
        return host.PagesLeased(
            lease_id=wanted.lease_id, host_page_ids=(pages,), generations=(pages,)
        )
