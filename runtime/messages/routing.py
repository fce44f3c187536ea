"""What a client that chooses among several engines hears of each: its keys and its load.

It goes over the client's own link, and is stale once that has closed.
"""

from dataclasses import dataclass

from raydix.runtime.config.policies import EngineRole
from raydix.runtime.messages.kv_events import KvEvent
from raydix.runtime.messages.line import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowEngine:
    """A client asks for the next `EngineNews`, once there is some; at first for all that there is.

    It asks again once it has taken that: so what waits for one that is slow is one message. Never
    stale.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node has to do, and how quickly it does that. An older one is stale."""

    num_seen: int
    """How many of the requests that this client has sent to the node are part of what follows."""
    busy_s: float
    """The time that a request waits there for others."""
    num_requests: int
    """How many are there."""
    arrivals_per_s: float
    """How many requests have come of late, per second."""
    busy_fraction: float
    """The part of the time in which it has computed prompts of late: 0 to 1."""
    num_ingresses: int
    """How many clients that route send requests there, this one included: of those of others it
    hears by reports.
    """
    prefill: Line
    """The time to compute tokens of a prompt."""
    load: Line
    """The time to load pages from L2 to L1."""
    pull: Line | None
    """The time to fetch pages from another node; None: that is not possible."""
    page_size: int
    """Tokens per page."""
    interval_s: float
    """The most time until the next report."""
    num_decoding: int = 0
    """How many requests decode there, each of which waits while prompts are computed."""
    is_full: bool = False
    """Whether so many requests wait there that a new one would be refused."""
    is_asleep: bool = False
    """Whether the engine sleeps, or is on its way into sleep or out of it: nobody knows for how
    long requests would wait there.
    """
    num_free_slots: int = 0
    """How many more requests could run; below 0: so many more are there than can."""
    slot_s: float = 0.0
    """The time between two that end while as many run as can; 0 while more can run."""
    role: EngineRole = EngineRole.BOTH
    l2: str | None = None
    """Which L2 the node uses: nodes that say the same share it. None: it has none now."""

    def slot_wait_s(self, num_before: float = 0.0) -> float:
        """The time until one more request may run, behind `num_before` that are not told here."""
        return max(0.0, num_before + 1 - self.num_free_slots) * self.slot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNews:
    """The answer to a `FollowEngine`."""

    is_anew: bool
    """Whether what was told of keys before is void: all that there are follow, then changes."""
    is_whole: bool
    """Whether all that there was when the client began to follow was told with these or before."""
    events: tuple[KvEvent, ...]
    """Changes of L1 and L2, in their order, after which the report was made: of the KV group by
    which prompts are found, 16 bytes a key.
    """
    report: NodeReport | None
    """None: as before, as far as that matters."""
