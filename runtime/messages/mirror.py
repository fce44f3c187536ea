"""What is told of the keys of L2, and of other nodes, from whose L2 pages can be pulled."""

from dataclasses import dataclass

from raydix.ids import L2_SOURCE, SourceId


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorUpdate:
    """Keys (first 16 bytes) that were dropped from a node's L2, then those that became READY.

    A hint. Stale if that node was lost since.
    """

    source: SourceId = L2_SOURCE
    """The node whose L2 it is: the own one, or another. `L3_SOURCE`: keys of objects in storage,
    whose own content may change unseen.
    """
    ready: bytes = b""
    dropped: bytes = b""
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCleared:
    """Nothing is known of any page of a place any more, nor of what was told of it before."""

    source: SourceId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFound:
    """Another node has come, from whose L2 pages can be pulled. Its keys follow."""

    source: SourceId
    name: str
    """What that node's HostMemory calls itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """Another node's L2 is out of reach. Its number never comes again."""

    source: SourceId
