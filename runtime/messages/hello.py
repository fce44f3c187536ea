"""Who stands at either end of a link, told while the link is opened."""

from dataclasses import dataclass
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
    """Who speaks. The connecting end tells it first, then the listener, each with its proof."""

    role: Role
    name: str
    incarnation: int
    """Counts the starts of the named actor; a link belongs to one pair of incarnations."""
    pid: int
    rank: Rank | None = None
    """For GPU actors alone."""
    patience_s: float | None = None
    """For storage actors alone: how long an answer of their backend may take."""
    seeks: Role | None = None
    """Whom a client wants, where one address stands for several actors."""
