"""What travels between the HostMemories of two nodes, of which one pulls pages from the other.

The one that pulls has dialled. It counts its batches and never uses an id twice; each is answered
once, a pull by pages over streams of their own (`raydix.runtime.actors.pulls`). `AskExists` is
answered by `ObjectsDone` (both in `messages/host.py`), and keys of the other side's L2 come as
`MirrorUpdate`, all of them first.
"""

from dataclasses import dataclass, field

from raydix.ids import BatchId
from raydix.runtime.messages.host import AskExists, CancelBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaAccess:
    """How an arena is read from another node by NIXL, with no help of the process that owns it."""

    metadata: bytes = field(repr=False)
    """What NIXL there says of itself: where it is reached, and the keys of its memory."""
    address: int
    """Where the arena begins in the memory of that process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStreams:
    """Said first by the side that was dialled: open streams of pages, which belong to this link.

    Never stale: the ticket means something while the link is open.
    """

    port: int
    """Where they are listened for, on the host that was dialled."""
    ticket: bytes = field(repr=False)
    """What the hello of each stream is to show: which link it belongs to. Drawn at random."""
    access: ArenaAccess | None = None
    """How pages may be read instead of sent; None: they are sent alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPages:
    """Send the content of these pages of a KV group. Never stale.

    What the other side lacks is answered without content. Whoever pulls compares each page with its
    key and checksum before anybody may use it.
    """

    batch_id: BatchId
    keys: bytes
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TellKeys:
    """Tell all keys of L2 once more, as one has come who knows none. Never stale."""


ToPeer = AskExists | PullPages | CancelBatch | TellKeys
"""What a HostMemory says to one from which it pulls."""
