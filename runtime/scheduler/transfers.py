"""Loads and backups between L1 and L2 that are waiting to be sent or acknowledged, and pages loaded
ahead.
"""

from dataclasses import dataclass, field

import numpy as np

from raydix.ids import ConnectionId, LeaseId, PageKey, RequestId, TransferId
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import PageCopies


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Page copies that are acknowledged as a whole, by every rank of the lane. `page_ids` are held
    until then.
    """

    transfer_id: TransferId
    page_ids: Int32Array
    host_page_ids: Int32Array
    generations: Int32Array
    host_connection: ConnectionId
    """Over which its host pages were granted or leased."""
    waiting_ranks: set[int] = field(default_factory=set)
    is_stale: bool = False
    sent_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Load(Transfer):
    """L2 to L1, for a request or its promotion. Until it is acknowledged its pages are used only
    behind its event.
    """

    lease_id: LeaseId
    request_id: RequestId
    wakes_at_s: float = float("-inf")
    """When its request is looked at again, even if no event comes before."""


@dataclass(slots=True, kw_only=True)
class Backup(Transfer):
    """L1 to L2, published under `keys` once acknowledged."""

    keys: bytes


@dataclass(slots=True, kw_only=True, eq=False)
class Promotion:
    """What has come from L3 for a waiting request goes on to L1 while the rest is on its way, one
    part at a time.

    `lock` keeps in L1 what the request matches there. A promotion gives way to whoever needs its
    pages.
    """

    request_id: RequestId
    lock: Lock
    first_key: PageKey
    """Key of the first page of the part."""
    part: Int32Array
    """GPU pages of the part that is on its way; none between two parts."""
    lease_id: LeaseId | None
    """Asked for and not answered."""
    load: Load | None = None
    """Ready or sent, and not acknowledged."""

    @property
    def num_pages(self) -> int:
        """Pages of L1 that it keeps."""
        return self.lock.num_pages + len(self.part)


def page_copies(transfers: list[Load] | list[Backup]) -> PageCopies:
    """The columns of a plan for these transfers."""
    if not transfers:
        return PageCopies()
    counts = [len(transfer.page_ids) for transfer in transfers]
    pages = np.concatenate([transfer.page_ids for transfer in transfers])
    return PageCopies(
        transfer_ids=np.repeat(
            np.array([t.transfer_id for t in transfers], dtype=np.int32), counts
        ),
        groups=np.zeros(len(pages), dtype=np.int32),
        page_ids=pages,
        host_page_ids=np.concatenate([transfer.host_page_ids for transfer in transfers]),
        generations=np.concatenate([transfer.generations for transfer in transfers]),
    )
