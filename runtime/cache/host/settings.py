"""Settings of HostMemory's brain."""

from dataclasses import dataclass, field

from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.config.page_counts import pages_within
from raydix.runtime.config.policies import EvictionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How HostMemory uses L3.

    An order that is not answered in time is overdue: L3 is left alone, and tried again by and by.
    What is in time, its answers show, the late ones above all.
    """

    min_tokens: int = 64
    """The shortest run in tokens that is fetched; a shorter one is computed. Nothing tests this."""
    batch_pages: int = 32
    """The most pages of one read or write."""
    batch_bytes: int = 128 << 20
    """The most bytes of one read or write, unless a single page has more."""
    max_read_batches: int = 4
    """The most reads in flight at once."""
    max_write_batches: int = 2
    """The most writes in flight at once."""
    max_write_attempts: int = 3
    put_off_s: float = 60.0
    """Seconds for which a page is left alone after `max_write_attempts` failed writes."""
    patience_s: float = 10.0
    """Seconds after which an answer is of no use: the storage actor's deadline for a read or a
    write. A backend that attaches may bring another one.
    """
    overdue_margin_s: float = 5.0
    """Seconds past its deadline after which a read is overdue at the latest, a write at the
    soonest.
    """
    max_write_patience_s: float = 60.0
    """Seconds after which any write is overdue: nobody waits for it, but its pages are pinned."""
    clear_patience_s: float = 600.0
    """Seconds after which the removal of all objects is overdue: there may be millions."""
    min_read_patience_s: float = 2.0
    """The least seconds after which a read is overdue: it is so after several times as long as the
    slowest recent one took.
    """
    transfer_s_per_byte: float = 1e-8
    """Seconds allowed for each byte of reads or writes under way, on top of what any order may take
    and of several times what the slowest recent one took: answers to small orders say little of
    large ones.
    """
    exists_deadline_s: float = 1.0
    exists_deadline_per_page_s: float = 0.004
    """Seconds allowed for each page of a question whether objects exist, on top of
    `exists_deadline_s` or of several times what the slowest recent question took.
    """
    missing_ttl_s: float = 1.0
    """Seconds for which L3 is not asked again for what it lacked."""
    max_missing_names: int = 65_536
    """The most objects that L3 lacked which are remembered."""
    max_told_objects: int = 0
    """The most objects of L3 of which Schedulers are told that they are there; 0: of none."""
    exists_interval_s: float = 60.0
    """Seconds between questions to L3 about a page of L2 that is in use, as L3 may have lost it."""
    staged_grace_s: float = 30.0
    """Seconds for which fetched pages that nobody leases are kept once their lookup has ended."""
    breaker_failures: int = 5
    """The number of batches that must fail one after another before L3 is left alone."""
    breaker_backoff_s: float = 1.0
    """Seconds for which L3 is left alone at first; each further time it is twice as long."""
    breaker_max_backoff_s: float = 10.0
    recheck_interval_s: float = 10.0
    """Seconds after which a slow L3 is asked how slow it is, if nobody else asks."""

    def pages_of_batch(self, page_bytes: int) -> int:
        """The most pages of so many bytes in one read or write."""
        return pages_within(self.batch_bytes, page_bytes, self.batch_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings of the HostMemory core."""

    page_size: int
    eviction: EvictionPolicy = EvictionPolicy.LRU
    """The order in which pages make way for others."""
    max_kept_fraction: float = 0.25
    """The most of all pages that one tenant's sessions have kept."""
    rule: PrefixRule = field(default_factory=PrefixRule)
    """What each KV group needs of a prefix; by default there is one group, which needs all."""
    piece_pages: int = 2048
    """The most pages per turn in work that concerns all pages of L2."""
    storage: StorageSettings = StorageSettings()
    has_storage: bool = False
    """Whether L3 is in use from the start: a storage actor will attach."""
