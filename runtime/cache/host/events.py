"""What the HostMemory core is told, and what it orders.

Whoever takes the links counts connections, of all kinds together, and never uses a number twice.
What an earlier connection still brings is stale: it is counted and ignored. Several Schedulers may
be attached, each over one connection.
"""

from dataclasses import dataclass

from raydix.ids import BatchId, ConnectionId, HostPageId, SchedulerName
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    FromHost,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
    ToHost,
    WriteObjects,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import ToPeer
from raydix.runtime.messages.retention import RetainObjects

StorageOrder = AskExists | ReadObjects | WriteObjects | DeleteObjects | CancelBatch | RetainObjects


@dataclass(frozen=True, slots=True)
class SchedulerAttached:
    """A Scheduler has connected. An earlier connection of this name counts as lost."""

    connection: ConnectionId
    name: SchedulerName


@dataclass(frozen=True, slots=True)
class FromScheduler:
    """A Scheduler says something. Stale if its connection is lost or replaced."""

    connection: ConnectionId
    message: ToHost


@dataclass(frozen=True, slots=True)
class SchedulerLost:
    """A Scheduler's connection is gone. Stale if another one has replaced it in the meantime."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class SchedulerEnded:
    """A Scheduler has ended for good, with its engine: no later one has its name.

    Told once every process has exited that may have copied for it.
    """

    name: SchedulerName


@dataclass(frozen=True, slots=True)
class StorageAttached:
    """The storage actor of process `pid` has connected: from now on L3 is in use.

    Its hello says that this process moves no page, whatever was ordered over earlier connections.
    An earlier connection, if any, counts as lost.
    """

    connection: ConnectionId
    pid: int
    patience_s: float | None = None
    """Seconds that the backend's answers may take; None: as long as the settings say."""


@dataclass(frozen=True, slots=True)
class FromStorage:
    """The storage actor answers.

    Stale if the connection is lost or detached, or another one has attached.
    """

    connection: ConnectionId
    message: ObjectsDone


@dataclass(frozen=True, slots=True)
class StorageLost:
    """The storage actor's connection is gone; if L3 is in use, it or another one will come.

    Stale if another one has attached in the meantime, or storage was detached.
    """

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class RetireStorage:
    """L3 is not to be used any more. Answered by one `StorageRetired` once nothing is under way."""


@dataclass(frozen=True, slots=True)
class DetachStorage:
    """The backend's storage actor has ended, and what was under way with it."""


@dataclass(frozen=True, slots=True)
class PeerAttached:
    """The HostMemory of another node has been dialled, from which pages can be pulled from now on.

    Whoever carries orders to it out gets them as `ToStorage`, over this connection.
    """

    connection: ConnectionId
    name: str


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A peer answers what was asked of it, or its keys change. Stale if it is lost."""

    connection: ConnectionId
    message: ObjectsDone | MirrorUpdate


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer's connection is gone, and no page is written any more that it was to send."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ReaderAttached:
    """The HostMemory of another node has dialled, to pull pages of this one's L2."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class FromReader:
    """A HostMemory that pulls from this one says something. Stale if its connection is lost."""

    connection: ConnectionId
    message: ToPeer


@dataclass(frozen=True, slots=True)
class ReaderLost:
    """The connection of a reader is gone; what was being sent to it is told of apart."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class PagesSent:
    """The answer to a `SendPages`, whether or not the reader is still there. Never stale."""

    connection: ConnectionId
    batch_id: BatchId


PeerEvent = (
    PeerAttached | FromPeer | PeerLost | ReaderAttached | FromReader | ReaderLost | PagesSent
)
"""What HostMemories of several nodes have to do with each other."""


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A process named in `WatchProcess` has ended: it writes no memory any more."""

    pid: int


@dataclass(frozen=True, slots=True)
class FlushHost:
    """Drop all of L2 that nobody reads or writes, piece by piece. Answered by `HostFlushed`."""


@dataclass(frozen=True, slots=True)
class FlushStorage:
    """Remove this namespace's objects from L3. Answered by one `StorageFlushed`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due at `next_deadline_s`. This event alone goes on with work in pieces."""


HostEvent = (
    FromScheduler
    | SchedulerAttached
    | SchedulerLost
    | SchedulerEnded
    | FromStorage
    | StorageAttached
    | StorageLost
    | RetireStorage
    | DetachStorage
    | PeerEvent
    | ProcessExited
    | FlushHost
    | FlushStorage
    | Tick
)
"""Everything that the core can be told."""


@dataclass(frozen=True, slots=True)
class SetGenerations:
    """Write these entries of the arena's table, before any later effect."""

    host_page_ids: Int32Array
    generations: Int32Array


@dataclass(frozen=True, slots=True)
class ToScheduler:
    """Send over this connection, or not at all."""

    connection: ConnectionId
    message: FromHost


@dataclass(frozen=True, slots=True)
class ToStorage:
    """Order something of a storage actor, or of whoever pulls from a peer, or of nobody."""

    connection: ConnectionId
    message: StorageOrder


@dataclass(frozen=True, slots=True)
class ToReader:
    """Send over this connection, or not at all."""

    connection: ConnectionId
    message: ObjectsDone | MirrorUpdate


@dataclass(frozen=True, slots=True)
class SendPages:
    """Send these pages to a reader; until `PagesSent` answers they do not change."""

    connection: ConnectionId
    batch_id: BatchId
    page_ids: tuple[HostPageId | None, ...]
    """None for a page that L2 lacks."""


@dataclass(frozen=True, slots=True)
class AskForKeys:
    """Ask a peer to tell all its keys once more: some Scheduler knows none of them."""

    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class WatchProcess:
    """Report `ProcessExited(pid)` once that process has ended, at once if it has."""

    pid: int


@dataclass(frozen=True, slots=True)
class HostFlushed:
    """The answer to every `FlushHost` so far that has none: so many pages were dropped."""

    num_pages: int


@dataclass(frozen=True, slots=True)
class StorageFlushed:
    """The answer to `FlushStorage`; MISSING if there is no L3."""

    status: ObjectStatus


@dataclass(frozen=True, slots=True)
class StorageRetired:
    """The answer to `RetireStorage`."""


HostEffect = (
    SetGenerations
    | ToScheduler
    | ToStorage
    | ToReader
    | SendPages
    | AskForKeys
    | WatchProcess
    | HostFlushed
    | StorageFlushed
    | StorageRetired
)
"""Everything that the core can order, to be carried out in order."""
