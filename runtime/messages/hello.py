"""Who stands at either end of a link, told while the link is opened."""

from dataclasses import dataclass, field
from enum import StrEnum

from raydix.ids import Rank


class Role(StrEnum):
    """What stands at one end of a link."""

    CLIENT = "client"
    SCHEDULER = "scheduler"
    GPU = "gpu"
    HOST_MEMORY = "host_memory"
    STORAGE = "storage"
    SUPERVISOR = "supervisor"
    FOLLOWER = "follower"
    """Whoever is told what becomes of the Scheduler's caches, and says nothing."""
    PAGE_STREAM = "page_stream"
    """No actor: one of the streams by which a HostMemory gets pages from another node."""
    LEASE_STREAM = "lease_stream"
    """No actor: such a stream that tells where pages may be read, instead of bringing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who speaks. The connecting end tells it first, then the listener, each with its proof."""

    role: Role
    name: str
    incarnation: int
    """Counts the starts of the named actor; a link belongs to one pair of incarnations.

    Of a client, its links: the newest to an actor stands for it, and ends the former ones.
    """
    pid: int
    rank: Rank | None = None
    """The rank of a GPU actor; no other actor has one."""
    patience_s: float | None = None
    """How long an answer of a storage actor's backend may take; no other actor says so."""
    ticket: bytes | None = field(default=None, repr=False)
    """What tells to which link a stream of pages belongs; no actor shows one."""
    seeks: Role | None = None
    """The actor that a client wants, where one address stands for several."""
