"""What an ingress is told of the nodes of a service, and what it is asked.

A node is numbered when it is found. Its number never comes again, so what is still said of one that
has gone is stale, and concerns nobody who has come back under its name.
"""

from dataclasses import dataclass

from raydix.ids import NodeId, RequestId
from raydix.runtime.messages.kv_events import KvNews, Tier
from raydix.runtime.messages.line import Line


@dataclass(frozen=True, slots=True)
class CacheSize:
    """How many pages a tier of a node holds at most.

    There is none of what storage holds: all nodes reach it alike.
    """

    tier: Tier
    lane: int | None
    """The lane whose L1 it is; None for the tier that all lanes share."""
    max_pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFound:
    """A node has come. Its keys and its reports follow."""

    node: NodeId
    name: str
    sizes: tuple[CacheSize, ...]
    group: int = 0
    """The KV group by which prompts are found: one that keeps all pages, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """A node is out of reach."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingBegun:
    """The keys of a node are told anew, over a link of its own: first all that there are.

    Until these are whole what was known before counts.
    """

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNews:
    """What the node tells of its keys."""

    node: NodeId
    news: KvNews


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node has to do, and how quickly it does that. An older one is stale."""

    node: NodeId
    num_seen: int
    """How many of the requests that this ingress has sent to the node are part of what follows."""
    busy_s: float
    """The time that a request waits there for others."""
    num_requests: int
    """How many are there."""
    arrivals_per_s: float
    """How many requests have come of late, per second."""
    busy_fraction: float
    """The part of the time in which it has computed prompts of late: 0 to 1."""
    num_ingresses: int
    """How many ingresses send requests there, this one included: of others it hears by reports."""
    prefill: Line
    """The time to compute tokens of a prompt."""
    load: Line
    """The time to load pages from L2 to L1."""
    pull: Line | None
    """The time to fetch pages from another node; None: that is not possible."""
    interval_s: float
    """The time until the next report."""


NodeEvent = NodeFound | NodeGone | FollowingBegun | NodeNews | NodeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request that is to be sent to a node."""

    request_id: RequestId
    keys: bytes
    """Keys of the full pages of its prompt, 32 bytes each."""
    num_tokens: int
    """The length of its prompt."""
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes, and why."""

    node: NodeId
    name: str
    number: int
    """The number of this request among those that the ingress has sent to the node, from 1 on."""
    first_token_s: float
    """The predicted time to its first token."""
    num_cached_tokens: int
    """How many of its tokens are there already, or will be when its turn comes."""
    num_pulled_tokens: int
    """How many of its tokens another node has, from which they come sooner than computed."""

    @property
    def header(self) -> str:
        """The value of a response's header `x-raydix-route`."""
        parts = [
            f"node={self.name}",
            f"predicted_ms={1000 * self.first_token_s:.0f}",
            f"cached={self.num_cached_tokens}",
        ]
        if self.num_pulled_tokens:
            parts.append(f"pulled={self.num_pulled_tokens}")
        return ", ".join(parts)
