"""Settings of HostMemory's brain."""

from dataclasses import dataclass, field

from raydix.runtime.cache.host.window_ends import PrefixRule


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How HostMemory uses L3.

    An order that is not answered in time is overdue: L3 is left alone, and tried again by and by.
    What is in time, its answers show, the late ones above all.
    """

    min_tokens: int = 64
    """A shorter run is computed instead of fetched. What is set is believed: nothing tests it."""
    batch_pages: int = 32
    """Pages of one read or write."""
    max_read_batches: int = 4
    """Reads in flight at once."""
    max_write_batches: int = 2
    """Writes in flight at once."""
    max_write_attempts: int = 3
    put_off_s: float = 60.0
    """A page whose write has failed so often is left alone for so long."""
    patience_s: float = 10.0
    """An answer that takes longer is of no use: the storage actor's deadline for a read or a write.
    A backend that attaches may bring another one."""
    overdue_margin_s: float = 5.0
    """A read is overdue so long after its deadline at the latest, a write not before that."""
    max_write_patience_s: float = 60.0
    """A write is overdue then at the latest: nobody waits for it, but its pages are pinned."""
    clear_patience_s: float = 600.0
    """The removal of all objects is overdue after this time: there may be millions."""
    min_read_patience_s: float = 2.0
    """A read is overdue after several times as long as the slowest recent one took, but not before
    this time.
    """
    exists_deadline_s: float = 1.0
    exists_deadline_per_page_s: float = 0.004
    """A question whether objects exist is overdue after `exists_deadline_s`, or several times as
    long as the slowest recent one took, and this time for each page that is being asked about.
    """
    missing_ttl_s: float = 1.0
    """What L3 was seen to lack is not asked for again for so long."""
    max_missing_names: int = 65_536
    """Objects that L3 was seen to lack are remembered up to this number."""
    exists_interval_s: float = 60.0
    """How often L3 is asked about a page of L2 that is in use, as it may have lost the page."""
    staged_grace_s: float = 30.0
    """Fetched pages that nobody leases are kept for so long once their lookup has ended."""
    breaker_failures: int = 5
    """Batches that must fail one after another before L3 is left alone."""
    breaker_backoff_s: float = 1.0
    """How long L3 is left alone at first; each further time it is twice as long."""
    breaker_max_backoff_s: float = 10.0
    recheck_interval_s: float = 10.0
    """While L3 is slow it is asked so often how slow, if nobody else asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of the HostMemory core."""

    page_size: int
    rule: PrefixRule = field(default_factory=PrefixRule)
    """What each KV group needs of a prefix; by default there is one group, which needs all."""
    piece_pages: int = 2048
    """Work that concerns all pages of L2 is done in pieces of at most so many, one per turn."""
    storage: StorageSettings = StorageSettings()
    has_storage: bool = False
    """L3 is in use from the start: a storage actor will attach."""
