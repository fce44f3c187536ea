"""A stand-in for HostMemory, with as many pages of each KV group as are wanted and no L3."""

from typing import Any

from raydix.ids import LeaseId, LookupId
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import PageSource
from tests.runtime.scheduler.keys import mirror_keys


class HostStandIn:
    """Owns: which keys are READY, which leases run, and which lookups have not ended."""

    def __init__(self, num_groups: int = 1) -> None:
        self.groups: list[set[bytes]] = [set() for _ in range(num_groups)]
        self.ready = self.groups[0]
        """The ready pages of the first KV group."""
        self.leases: dict[LeaseId, int] = {}
        """Pages of each."""
        self._open_lookups: set[LookupId] = set()
        self._num_pages = 0

    def clear(self) -> None:
        """Its process ended, and all that it held is lost."""
        for state in (*self.groups, self.leases, self._open_lookups):
            state.clear()

    def grant(self, num_pages: int, group: int = 0) -> host.PagesGranted:
        """Hand out free host pages."""
        first = self._num_pages
        self._num_pages += num_pages
        pages = int32_array(range(first, first + num_pages))
        return host.PagesGranted(host_page_ids=pages, generations=pages, group=group)

    def report(self, lookup_id: LookupId, sources: list[PageSource]) -> host.LookupProgress:
        """Report on a chain; that is final unless a page is PENDING."""
        is_final = PageSource.PENDING not in sources
        self._open_lookups.discard(lookup_id)
        if not is_final:
            self._open_lookups.add(lookup_id)
        return host.LookupProgress(
            lookup_id=lookup_id, sources=(bytes(sources),) * len(self.groups), is_final=is_final
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
                self.groups[message.group].update(split_keys(message.keys))
                ready = host.MirrorUpdate(ready=mirror_keys(message.keys), group=message.group)
                return [ready, self.grant(len(message.host_page_ids), message.group)]
            case host.CopiesDrained():
                return [self.grant(64, group) for group in range(len(self.groups))]
            case _:
                return []

    def _look_up(self, lookup: host.Lookup) -> host.LookupProgress:
        sources = []
        for ready, num_l1_pages in zip(self.groups, lookup.num_l1_pages, strict=True):
            column = [
                PageSource.L2 if key in ready else PageSource.NOT_FOUND
                for key in split_keys(lookup.keys)
            ]
            column[:num_l1_pages] = [PageSource.L1] * num_l1_pages
            sources.append(bytes(column))
        self._open_lookups.discard(lookup.lookup_id)
        return host.LookupProgress(
            lookup_id=lookup.lookup_id, sources=tuple(sources), is_final=True
        )

    def _lease(self, wanted: host.LeasePages) -> host.PagesLeased:
        keys = split_keys(wanted.keys)
        missing = [
            page
            for ready, start in zip(self.groups, wanted.starts, strict=True)
            for page in range(start, len(keys))
            if keys[page] not in ready
        ]
        stop = min(missing, default=len(keys))
        counts = [max(0, stop - start) for start in wanted.starts]
        self.leases[wanted.lease_id] = max(counts)

        runs = tuple([int32_array(range(1000, 1000 + count)) for count in counts])
        return host.PagesLeased(lease_id=wanted.lease_id, host_page_ids=runs, generations=runs)
