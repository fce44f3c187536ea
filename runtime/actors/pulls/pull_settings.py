"""What both sides of pulls need of the HostMemory that they are part of."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from raydix.ids import ConnectionId
from raydix.runtime.cache.host.events import PeerEvent
from raydix.runtime.messages.hello import Hello
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.tiers.host_arena import HostArena

PATIENCE_S = 10.0
"""Seconds after which a peer that sends or takes nothing, though it should, counts as gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """Where the HostMemory of a node can be pulled from."""

    name: str
    """What it calls itself, which no other does."""
    host: str
    port: int
    namespace: bytes
    """The digest of what its pages are: those of others are of no use."""
    secret: bytes = field(repr=False)
    """What whoever dials must show. It is told through Ray, to those who may run code there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullHome:
    """The HostMemory on whose behalf is pulled and sent."""

    hello: Hello
    arena: HostArena
    namespace: Namespace
    post: Callable[[PeerEvent], None]
    """Tells the core, on the actor's loop."""
    next_connection: Callable[[], ConnectionId]
    """Counts a connection."""
    num_streams: int = 4
    """Streams of pages per peer."""
    dialer_tls: ssl.SSLContext | None = None
    listener_tls: ssl.SSLContext | None = None
    patience_s: float = PATIENCE_S
