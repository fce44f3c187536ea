"""What travels between the Scheduler and HostMemory, and between HostMemory and storage actors.

Page keys travel concatenated, as `raydix.runtime.cache.page_key` makes them and takes them apart.
All host pages are quoted with their generation: a message about an older generation concerns a page
that has since changed hands and is ignored.

HostMemory counts the batches that it orders of a storage actor and never uses an id twice, so an
answer names one order. Over a connection every order is answered once; an answer to none is an
error of accounting. A storage actor that connects, for the first time or again, has no order of an
earlier connection under way, and answers none of them any more.

Every message belongs to the connection it came over. Both ends drop what an earlier connection
still brings, so an id below means something over its connection alone: Schedulers that use one
HostMemory count alike. What else makes a message stale stands with it.
"""

from dataclasses import dataclass
from enum import IntEnum

from raydix.ids import L3_SOURCE, SEVERAL_USERS, BatchId, LeaseId, LookupId, SourceId, UserId
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.mirror import MirrorCleared, MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.messages.retention import EndUse, Pin, ReleasePin


class PageSource(IntEnum):
    """Where a prompt page came from, or why it was computed. One byte per page on the wire."""

    L1 = 0
    L2 = 1
    PEER = 2
    """The L2 of another node, from where it was pulled over the network."""
    L3 = 3
    LAST_TOKEN = 10
    PARTIAL_PAGE = 11
    NOT_FOUND = 12
    BELOW_MIN_TOKENS = 13
    TIMED_OUT = 14
    CANCELLED = 15
    RECOMPUTE_CHEAPER = 16
    NO_HOST_PAGE = 17
    BAD_OBJECT = 18
    IO_ERROR = 19
    CACHING_OFF = 20
    PROMPT_LOGPROBS = 21
    NO_WINDOW = 22
    PENDING = 30
    """The page is not yet known: a read is in flight or waits for its turn. Never final."""

    @property
    def label(self) -> str:
        """The key in `cached_tokens_by_source`: a tier, such as `l2`, or `computed:REASON`."""
        name = self.name.lower()
        return name if self <= PageSource.L3 else f"computed:{name}"


class Urgency(IntEnum):
    """How urgent a lookup is: the lowest goes first."""

    REQUEST = 0
    HINT = 1
    """Nobody waits: it is read for after all requests' pages, and nobody pins what it brings."""


BROUGHT = (PageSource.PEER, PageSource.L3)
"""The sources of pages that a lookup has brought into L2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """Touch a chain, last page first, and fetch what neither L1 nor L2 holds from one source.

    `keys` is the whole chain, the same in every KV group. Of a WINDOW group only the pages before
    the best end that all groups can have are fetched, and before some ends on the way to it.
    Progress is reported until every page's source is final. Never stale: a request may ask again,
    under a new `lookup_id`.
    """

    lookup_id: LookupId
    keys: bytes
    num_l1_pages: tuple[int, ...]
    """Per KV group: L1 holds the pages before this one, which are only touched; of a WINDOW group,
    those that a prefix needs which ends here.
    """
    num_brought_pages: int = 0
    """Earlier lookups brought so many pages of the chain: these are the rest of a run."""
    source: SourceId = L3_SOURCE
    """Where pages are fetched from: L3, or another node's L2; if that has gone meanwhile, L3."""
    urgency: Urgency = Urgency.REQUEST
    user: UserId = SEVERAL_USERS
    """Who uses the chain: until its `EndUse`, if it is one."""
    pin: Pin | None = None
    """What is there at the end is pinned so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelLookup:
    """Nobody waits for this lookup any more.

    What it fetched and nobody has leased makes room at once. If it has not ended, fetching stops,
    but for reads that others share, and a final `LookupProgress` answers. Worth saying after that,
    too: fetched pages are kept for some time otherwise. Never stale.
    """

    lookup_id: LookupId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePages:
    """Pin READY pages for reading. Answered by `PagesLeased`. Never stale.

    Every group's run ends with the last of `keys`, which are a run of a chain; group g leases
    `keys[starts[g]:]`, perhaps nothing.
    """

    lease_id: LeaseId
    keys: bytes
    starts: tuple[int, ...]
    """Per KV group: the first page of its run, counted from the first of `keys`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLeases:
    """End read leases. Never stale, so unknown ids are errors of accounting."""

    lease_ids: tuple[LeaseId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPages:
    """Granted pages are filled, on every rank: publish them under their keys.

    Stale, page by page, if the generation is not the page's or the page is not granted: counted and
    ignored.
    """

    keys: bytes
    host_page_ids: Int32Array
    generations: Int32Array
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonPages:
    """A rank group is out of reach with copies in flight: its grants and leases go into quarantine.

    That ends when each process of `pids` has exited or was named in a `ProcessDrained` since. A
    grant is stale as in `CommitPages`.
    """

    host_page_ids: Int32Array
    generations: Int32Array
    lease_ids: tuple[LeaseId, ...]
    pids: tuple[int, ...]
    """Every process that may still copy for the group, one at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDrained:
    """A process that lives said hello anew.

    None of the copies is in flight for which pages were abandoned before. A GPU process copies for
    one Scheduler while it lives.
    """

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesDrained:
    """No copy is in flight that this Scheduler ordered over an earlier connection.

    Grants may start. Said once a connection.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesGranted:
    """Free host pages, now FILLING under the Scheduler's write lease, to back pages up into.

    Stale once the connection is lost, like all grants: HostMemory keeps them in quarantine until
    the same Scheduler says `CopiesDrained`.
    """

    host_page_ids: Int32Array
    generations: Int32Array
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesLeased:
    """Answer to `LeasePages`: per KV group the host pages of its run, in order.

    All runs are cut at the first page that some group lacks, so they end together; a group whose
    run starts behind that page leases nothing. Stale if the Scheduler waits for this lease no
    longer: it is released at once.
    """

    lease_id: LeaseId
    host_page_ids: tuple[Int32Array, ...]
    generations: tuple[Int32Array, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """Whether L3 is in use, as only then pages are worth waiting for, and how long that takes.

    Sent first and at changes.
    """

    is_in_use: bool
    max_staged_pages: tuple[int, ...]
    """Per KV group: how many pages from L3 are kept in L2 at once for requests that wait."""
    min_tokens: int = 0
    """L3 is not asked for fewer."""
    answer_s: float = 0.0
    """How long it takes at least, these days, from a lookup to a page; 0: not long, or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupProgress:
    """Where the pages of a chain come from, as far as is known. Stale if nobody waits for it.

    What `num_l1_pages` names says L1. In all groups the other pages from the first one on that a
    FULL or LATENT group cannot have say why; those that are of no use for want of a window that no
    tier has say NO_WINDOW. A page of a WINDOW group that cannot be had says so
    for itself; one that no end needs for which pages are fetched says NOT_FOUND, unless it is in
    L2. It may turn to PENDING while the report is not final: if another page does not come, the
    next best end is fetched for. The best end that the reports allow never moves back.
    """

    lookup_id: LookupId
    sources: tuple[bytes, ...]
    """Per KV group: one `PageSource` byte for each page of the chain."""
    is_final: bool
    """No page of any group is PENDING: this is the last report."""
    source: SourceId = L3_SOURCE
    """Where pages were looked for; it has brought those that say PEER or L3."""
    seconds: float = 0.0
    """The time since the lookup came: what was cancelled, or came too late, takes longer."""
    num_full_pages: int = 0
    """Every FULL and LATENT group is known to have so many pages, in some tier; 0 without such
    groups. A prefix that ends there may lack but a window: whoever computes it is to leave one.
    """
    num_pinned_pages: int = 0
    """The leading pages that the pin holds which was asked for, with the last report."""


ToHost = (
    Lookup
    | EndUse
    | ReleasePin
    | CancelLookup
    | LeasePages
    | ReleaseLeases
    | CommitPages
    | AbandonPages
    | ProcessDrained
    | CopiesDrained
)
"""What a Scheduler says to HostMemory."""
FromHost = (
    PagesGranted
    | PagesLeased
    | MirrorUpdate
    | MirrorCleared
    | PeerFound
    | PeerGone
    | StorageStatus
    | LookupProgress
)
"""What HostMemory answers."""


class ObjectStatus(IntEnum):
    """The result of one object's operation. One byte per object on the wire."""

    OK = 0
    MISSING = 1
    IO_ERROR = 2
    TIMED_OUT = 3
    CANCELLED = 4
    FULL = 5
    TOO_SHORT = 10
    BAD_MAGIC = 11
    BAD_VERSION = 12
    WRONG_NAMESPACE = 13
    WRONG_KEY = 14
    WRONG_LENGTH = 15
    WRONG_CODEC = 16
    BAD_CHECKSUM = 17

    @property
    def label(self) -> str:
        """Its name in figures and metrics."""
        return self.name.lower()

    @property
    def is_bad_object(self) -> bool:
        """The object exists but its bytes must not be used."""
        return self >= ObjectStatus.TOO_SHORT

    @property
    def source_of_miss(self) -> PageSource:
        """Why a page has to be computed if this became of its object."""
        if self is ObjectStatus.MISSING:
            return PageSource.NOT_FOUND
        if self is ObjectStatus.TIMED_OUT:
            return PageSource.TIMED_OUT
        return PageSource.BAD_OBJECT if self.is_bad_object else PageSource.IO_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class AskExists:
    """Which of these objects exist? A hint, answered by `ObjectsDone`. Never stale."""

    batch_id: BatchId
    keys: bytes
    group: int = 0
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObjects:
    """Read and verify objects into host pages. Never stale.

    The pages are FILLING and nobody else's until the answer.
    """

    batch_id: BatchId
    keys: bytes
    host_page_ids: Int32Array
    group: int = 0
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteObjects:
    """Write READY host pages, which HostMemory keeps pinned until the answer. Never stale."""

    batch_id: BatchId
    keys: bytes
    host_page_ids: Int32Array
    group: int = 0
    deadline_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObjects:
    """Remove all objects of this namespace. `ObjectsDone` brings one status. Never stale."""

    batch_id: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBatch:
    """The rest of a batch is not wanted; its answer says CANCELLED for what was not done.

    Stale if the answer is under way: then nothing happens.
    """

    batch_id: BatchId


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsDone:
    """One `ObjectStatus` byte per object; the storage actor is done with the batch's pages.

    Stale as to what was asked, if HostMemory has given the batch up or cancelled it; what it says
    of pages holds.
    """

    batch_id: BatchId
    statuses: bytes
    seconds: float = 0.0
