"""Loads and backups between L1 and L2, and what is loaded ahead of a request's turn.

a load, L2 to L1                           a backup, L1 to L2
HostMemory pins READY pages (a lease)      HostMemory hands out FILLING pages (a grant)
        |  PagesLeased                             |  PagesGranted
        v                                          v
ready: `InFlight.ready_loads`              pages wait in `Backups` for a copy
        |  the next plan                           |  the next plan
        v                                          v
sent: `InFlight.transfers`, each GPU page held in its pool until all ranks have acknowledged
        |  TransfersDone                           |  TransfersDone
        v                                          v
the lease ends; its rows count, or the     `CommitPages`: the pages are READY, under their keys;
request starts over if it was stale        nothing, if HostMemory is another by now
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raydix.ids import ConnectionId, LeaseId, RequestId, TransferId
from raydix.runtime.cache.page_pools import (
    PageIds,
    join_columns,
    no_pages,
    num_pages_of,
    pages_between,
)
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.messages.host import AbandonPages, CommitPages
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.messages.retention import EndUse
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.timers import Alarm

_NO_COPIES = PageCopies()


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Page copies that every rank of the lane acknowledges as a whole; their pages are held."""

    transfer_id: TransferId
    page_ids: PageIds
    host_page_ids: PageIds
    generations: PageIds
    """The generations of the host pages, one column per KV group."""
    host_connection: ConnectionId
    """The connection over which the host pages were granted or leased."""
    waiting_ranks: set[int] = field(default_factory=set)
    is_stale: bool = False
    """Whether a rank read a host page that had changed hands: the bytes are not to be used."""
    sent_s: float | None = None
    first_s: float | None = None
    """The time since which every transfer sent before this one has been done."""

    @property
    def num_pages(self) -> int:
        """Pages of the group that moves the most: of a load, those that its request gains."""
        return num_pages_of(self.page_ids)

    def send(self, ranks: range, now_s: float) -> None:
        """Note that the transfer goes to these ranks with the next plan."""
        self.waiting_ranks = set(ranks)
        self.sent_s = now_s

    def age_s(self, now_s: float) -> float:
        """The seconds since the transfer was sent."""
        assert self.sent_s is not None, "only what was sent comes back"
        return now_s - self.sent_s

    def come_first(self, now_s: float) -> None:
        """Note that all transfers sent before this one are done: ranks work on it, if on any."""
        self.first_s = now_s

    def acknowledge(self, rank: int, *, is_stale: bool) -> bool:
        """Note that a rank has done the transfer; returns whether all have."""
        self.waiting_ranks.discard(rank)
        self.is_stale |= is_stale
        return not self.waiting_ranks


@dataclass(slots=True, kw_only=True)
class Load(Transfer):
    """L2 to L1, for a request or a promotion. Only rows that wait for it may use its pages."""

    lease_id: LeaseId
    request_id: RequestId
    alarm: Alarm = field(default_factory=Alarm)
    """The alarm for the time at which a row that waits for the load may be sent."""
    copied: tuple[int, float] | None = None
    """Bytes and seconds of the slowest rank; None if another load's report covers this one, too."""

    def note_copied(self, num_bytes: int, seconds: float) -> None:
        """Note that a rank has copied the load, perhaps with others behind it, in `seconds`."""
        if self.copied is None or self.copied[1] < seconds:
            self.copied = num_bytes, seconds


@dataclass(slots=True, kw_only=True)
class Backup(Transfer):
    """L1 to L2, published under `keys` once acknowledged."""

    keys: tuple[bytes, ...]
    """The keys of each KV group's pages, 32 bytes each, concatenated."""

    def commits(self) -> list[CommitPages]:
        """The messages that publish the pages, one per KV group."""
        columns = zip(self.keys, self.host_page_ids, self.generations, strict=True)
        return [
            CommitPages(keys=keys, host_page_ids=page_ids, generations=generations, group=group)
            for group, (keys, page_ids, generations) in enumerate(columns)
            if keys
        ]


@dataclass(slots=True, kw_only=True, eq=False)
class Promotion:
    """What has come to L2 goes on to L1, one part at a time.

    It is for a request that waits for more, for a session that is about to go on, which gets one
    part, or for a request that another engine begins. `lock` keeps in L1 what is matched there. It
    gives way to whoever needs its pages.
    """

    request_id: RequestId
    chain: Chain
    lane: int
    priority: int
    returns: EndUse | None = None
    """The session that is about to go on; None: it is for a request."""
    reserved: PageIds | None = None
    """The GPU pages for all that is yet to come of a request that another engine begins; None: it
    is for no such request.
    """
    lock: Lock
    part: PageIds
    """The GPU pages of the part that is on its way; none between two parts."""
    lease_id: LeaseId | None
    """The lease that was asked for and not answered."""
    load: Load | None = None
    """The load of the part, ready or sent and not acknowledged."""

    @property
    def num_pages(self) -> int:
        """The number of L1 pages that the promotion keeps."""
        return self.lock.num_pages + self.num_part_pages + self.num_reserved_pages

    @property
    def num_reserved_pages(self) -> int:
        """Pages that are kept for parts that are not on their way yet."""
        return 0 if self.reserved is None else num_pages_of(self.reserved)

    def num_private_pages(self, group: int) -> int:
        """Pages of a KV group that are kept for it and are not in the tree."""
        num_reserved = 0 if self.reserved is None else len(self.reserved[group])
        return len(self.part[group]) + num_reserved

    @property
    def is_for_waiting_request(self) -> bool:
        """Whether a request waits for it here."""
        return self.returns is None and self.reserved is None

    @property
    def num_part_pages(self) -> int:
        """Pages of the part that is on its way."""
        return num_pages_of(self.part)

    def num_kept_pages(self, reach: int | None) -> int:
        """The most pages that it keeps of a KV group with this reach; None: of all pages."""
        return self.num_pages if reach is None else min(reach, self.lock.num_pages)

    def part_with_gaps(self) -> PageIds:
        """The part as one run of each KV group, 0 where a group has nothing of it."""
        num_pages = self.num_part_pages
        return tuple(
            [ids if len(ids) else np.zeros(num_pages, dtype=np.int32) for ids in self.part]
        )

    def wait_for(self, lease_id: LeaseId) -> None:
        """Note that HostMemory is asked for a lease on the host pages of the part."""
        self.lease_id = lease_id

    def take_part(self, num_pages: int) -> None:
        """Let the first of the reserved pages be those of the next part."""
        assert self.reserved is not None, "pages are reserved for it"
        assert not self.num_part_pages, "one part is on its way at a time"
        self.part = pages_between(self.reserved, 0, num_pages)
        self.reserved = pages_between(self.reserved, num_pages)

    def wait_for_load(self, load: Load) -> PageIds:
        """Wait for the load of the leased first pages; returns the pages that are not leased.

        What is reserved stays reserved.
        """
        surplus = pages_between(self.part, load.num_pages)
        self.part, self.lease_id, self.load = load.page_ids, None, load
        if self.reserved is None:
            return surplus
        pairs = zip(surplus, self.reserved, strict=True)
        self.reserved = tuple([np.concatenate(pair) for pair in pairs])
        return no_pages(len(surplus))

    def drop_reserved(self) -> PageIds:
        """Keep no pages for parts to come; returns those that were kept."""
        reserved, self.reserved = self.reserved, None
        return no_pages(len(self.part)) if reserved is None else reserved

    def drop_part(self) -> PageIds:
        """Forget a part that will not come, or is in the tree; returns the pages kept for it."""
        part = self.part
        self.part, self.lease_id, self.load = no_pages(len(part)), None, None
        return part


def abandonment(transfers: Sequence[Transfer], pids: tuple[int, ...]) -> AbandonPages:
    """The message that gives up copies which these processes may still be making."""
    backups = [each for each in transfers if isinstance(each, Backup)]
    # The columns are of all KV groups together: a host page's id tells its group.
    return AbandonPages(
        host_page_ids=join_columns([backup.host_page_ids for backup in backups]),
        generations=join_columns([backup.generations for backup in backups]),
        lease_ids=tuple([each.lease_id for each in transfers if isinstance(each, Load)]),
        pids=pids,
    )


def page_copies(transfers: list[Load] | list[Backup]) -> PageCopies:
    """The columns of a plan for these transfers."""
    if not transfers:
        return _NO_COPIES
    # One run of pages after another: those of one transfer and one KV group.
    runs = [
        (transfer.transfer_id, group, len(page_ids))
        for transfer in transfers
        for group, page_ids in enumerate(transfer.page_ids)
    ]
    transfer_ids, groups, counts = np.array(runs, dtype=np.int32).T
    return PageCopies(
        transfer_ids=np.repeat(transfer_ids, counts),
        groups=np.repeat(groups, counts),
        page_ids=join_columns([transfer.page_ids for transfer in transfers]),
        host_page_ids=join_columns([transfer.host_page_ids for transfer in transfers]),
        generations=join_columns([transfer.generations for transfer in transfers]),
    )
