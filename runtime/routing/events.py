"""What an ingress is told of the nodes of a service, and what it is asked.

A node is numbered when it is found. Its number never comes again, so what is still said of one that
has gone is stale, and concerns nobody who has come back under its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from raydix.ids import NodeId, RequestId
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.routing import NodeReport

ROUTED_TIERS = ("l1", "l2", "peer")
"""Where a prompt's tokens are expected to come from, if they are not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFound:
    """A node has come. Its keys and its reports follow."""

    node: NodeId
    name: str


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
class NodeReported:
    """What the node tells of its load."""

    node: NodeId
    report: NodeReport


NodeEvent = NodeFound | NodeGone | FollowingBegun | NodeNews | NodeReported


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request that is to be sent to a node."""

    request_id: RequestId
    keys: Mapping[int, bytes]
    """Keys of the full pages of its prompt, 32 bytes each, by each page size of the nodes."""
    num_tokens: int
    """The length of its prompt."""
    session_id: str | None = None
    may_be_split: bool = False
    """Whether one node may give its first token and another one the others."""
    is_one_token: bool = False
    """Whether nothing comes behind its first token, so that it disturbs nobody later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextNode:
    """Where a request goes on once it has its first token."""

    node: NodeId
    name: str
    shares_l2: bool
    """Whether its pages are in the L2 of that node as soon as they are in that of the first one."""


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
    num_near_tokens: int
    """How many of them need not be loaded from L2."""
    num_pulled_tokens: int
    """How many of its tokens another node has, from which they come sooner than computed."""
    then: NextNode | None = None
    """Where the request goes on behind its first token; None: where it has begun."""

    @property
    def tokens_by_tier(self) -> dict[str, int]:
        """How many of its tokens are expected to come from each tier that is not computed."""
        num_loaded = self.num_cached_tokens - self.num_near_tokens
        nums = (self.num_near_tokens, num_loaded, self.num_pulled_tokens)
        return dict(zip(ROUTED_TIERS, nums, strict=True))

    @property
    def header(self) -> str:
        """The value of a response's header `x-raydix-routing`."""
        tiers = [f"{tier}={tokens}" for tier, tokens in self.tokens_by_tier.items()]
        parts = [f"engine={quote(self.name)}", f"predicted_s={self.first_token_s:.3f}", *tiers]
        if self.then is not None:
            parts.append(f"decode={quote(self.then.name)}")
        return ", ".join(parts)
