"""The first frame on every link, in both directions."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who speaks.

    The connecting end sends it first; the listener answers with its own once the secret is right.
    """

    secret: bytes = field(repr=False)
    role: Role
    name: str
    incarnation: int
    """Counts the starts of the named actor; a link belongs to one pair of incarnations."""
    pid: int
    rank: Rank | None = None
    """For GPU actors alone."""
