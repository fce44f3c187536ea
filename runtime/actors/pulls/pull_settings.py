"""What both sides of pulls need of the HostMemory that they are part of."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.links.numbered_links import NumberedLinks
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls.carriers import nixl_facts, why_not_nixl
from raydix.runtime.cache.host.events import PeerEvent
from raydix.runtime.config.pull import PullSection, PullTransport
from raydix.runtime.messages.hello import Hello
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.tiers.host_arena import HostArena

PATIENCE_S = 10.0
"""Seconds after which a peer that sends or takes nothing, though it should, counts as gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSetup:
    """How pages are pulled from other nodes, and sent to them."""

    section: PullSection
    namespace: Namespace
    """What the pages of this L2 are: those of another namespace are of no use here."""
    tls: TlsFiles | None = None
    """What links between nodes show, under TLS; None: they are plain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecord:
    """Where the HostMemory of a node can be pulled from."""

    name: str
    """What it calls itself, which no other does."""
    host: str
    port: int
    namespace: bytes
    """The digest of what its pages are."""
    secret: bytes = field(repr=False)
    """What whoever dials must show. It is told through Ray, to those who may run code there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullHome:
    """The HostMemory on whose behalf is pulled and sent."""

    hello: Hello
    arena: HostArena
    users: ArenaUsers
    """The arena's, among which processes are noted that map it."""
    namespace: Namespace
    links: NumberedLinks
    """The actor's links, to which those of other nodes are added."""
    post: Callable[[PeerEvent], None]
    """Tells the core, on the actor's loop."""
    num_streams: int = 4
    """Streams of pages per peer."""
    transport: PullTransport = PullTransport.TCP
    dialer_tls: ssl.SSLContext | None = None
    listener_tls: ssl.SSLContext | None = None
    patience_s: float = PATIENCE_S

    @property
    def why_not_nixl(self) -> str | None:
        """Why no pages are read by NIXL here; None: they are."""
        return why_not_nixl(self.transport, nixl_facts(self.listener_tls is not None))

    @classmethod
    def of(
        cls,
        setup: PullSetup,
        hello: Hello,
        arena: HostArena,
        users: ArenaUsers,
        links: NumberedLinks,
        post: Callable[[PeerEvent], None],
    ) -> Self:
        """What a setup says, for this actor. Raises ConfigError if TLS files cannot be used."""
        tls = setup.tls
        return cls(
            hello=hello,
            arena=arena,
            users=users,
            namespace=setup.namespace,
            links=links,
            post=post,
            num_streams=setup.section.streams,
            transport=setup.section.transport,
            dialer_tls=None if tls is None else tls.for_dialer(),
            listener_tls=None if tls is None else tls.for_listener(),
        )
