"""The L2 of other nodes: from some of them this one pulls pages, and others pull from it.

  this node                                another node
Lookup(source) -> Fetching --orders--> shell ====TCP====> shell --FromReader--> Readers
                                                                              pins, SendPages
READY, staged  <--ObjectsDone-- compares key and checksum <==bytes== shell <-/
                                                                 PagesSent: unpins
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId, HostPageId, SourceId
from raydix.runtime.cache.host.events import (
    AskForKeys,
    FromPeer,
    FromReader,
    PagesSent,
    PeerAttached,
    PeerEvent,
    PeerLost,
    ReaderAttached,
    ReaderLost,
    SendPages,
    ToReader,
)
from raydix.runtime.cache.host.fetching import Fetching, Shared
from raydix.runtime.cache.host.mirror import HostMirror
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.unanswered import Order, OrderKind
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    FromHost,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
)
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.messages.pulls import PullPages, TellKeys, ToPeer

_FIRST_SOURCE = 2
"""The number of the first peer: the node's own L2 and L3 come before."""
_NO_PID = 0
"""Peers are no processes of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node's L2, from which pages are pulled."""

    source: SourceId
    connection: ConnectionId
    name: str
    fetching: Fetching


class Readers:
    """Owns: the HostMemories that pull from this L2, and the pages that are being sent to them."""

    def __init__(self, settings: HostSettings, shared: Shared) -> None:
        self._index = shared.index
        self._effects = shared.effects
        self._piece_pages = settings.piece_pages
        self._attached: dict[ConnectionId, None] = {}
        self._mirrors: dict[ConnectionId, HostMirror] = {}
        """The mirrors of those that have yet to be told of more keys."""
        self._sending: dict[tuple[ConnectionId, BatchId], list[HostPageId]] = {}
        """The pinned pages of each batch that is being sent."""

    @property
    def num_pins(self) -> int:
        """The number of pins of pages that are being sent."""
        return sum(map(len, self._sending.values()))

    @property
    def num_attached(self) -> int:
        """The number of HostMemories that pull from this one."""
        return len(self._attached)

    @property
    def has_work(self) -> bool:
        """Whether some reader has yet to be told of more keys."""
        return bool(self._mirrors)

    def attach(self, connection: ConnectionId) -> None:
        """A reader has come, who knows no key."""
        self._attached[connection] = None
        self._mirrors[connection] = HostMirror(self._index, self._piece_pages)

    def lose(self, connection: ConnectionId) -> None:
        """A reader has gone; what is being sent stays pinned until that has ended."""
        self._attached.pop(connection, None)
        self._mirrors.pop(connection, None)

    def take(self, connection: ConnectionId, message: ToPeer) -> None:
        """Answer a reader, or begin to send pages; nothing over a connection that is lost."""
        if connection not in self._attached:
            return
        match message:
            case AskExists():
                found = self._index.find_all(message.group, split_keys(message.keys))
                statuses = [
                    ObjectStatus.MISSING if page_id is None else ObjectStatus.OK
                    for page_id in found
                ]
                done = ObjectsDone(batch_id=message.batch_id, statuses=bytes(statuses))
                self._effects.append(ToReader(connection, done))
            case PullPages():
                self._send(connection, message)
            case TellKeys():
                self.attach(connection)
            case CancelBatch():
                # What is under way is sent sooner than a way to stop it would be worth.
                pass
            case _:
                assert_never(message)

    def _send(self, connection: ConnectionId, message: PullPages) -> None:
        found = self._index.find_all(message.group, split_keys(message.keys))
        held = [page_id for page_id in found if page_id is not None]
        self._index.pin_all(message.group, held)
        self._sending[connection, message.batch_id] = held
        self._effects.append(SendPages(connection, message.batch_id, tuple(found)))

    def finish(self, connection: ConnectionId, batch_id: BatchId) -> None:
        """Nobody reads the pages of a batch any more."""
        self._index.unpin(self._sending.pop((connection, batch_id)))

    def inform(self, updates: Sequence[MirrorUpdate], is_walking: bool) -> None:
        """Tell readers what has changed in L2, and keys that they were not told yet."""
        for update in updates:
            self._effects += [ToReader(connection, update) for connection in self._attached]
        if not is_walking:
            return
        for connection, mirror in self._mirrors.items():
            self._effects += [ToReader(connection, piece) for piece in mirror.take_piece()]
        self._mirrors = {each: mirror for each, mirror in self._mirrors.items() if mirror.has_work}


class Peers:
    """Owns: which nodes can be pulled from, under which number, and what is fetched from each.

    An event goes over those alone with which something is under way, however many there are.
    """

    def __init__(self, settings: HostSettings, shared: Shared) -> None:
        # A pull is as short as a message: no run of pages is too short for it.
        storage = replace(settings.storage, min_tokens=1)
        self._settings = replace(settings, storage=storage)
        self._shared = shared
        self._effects, self._counters = shared.effects, shared.counters
        self._peers: dict[ConnectionId, Peer] = {}
        self._connections: dict[SourceId, ConnectionId] = {}
        """The link to each peer."""
        self._busy: dict[Fetching, None] = {}
        """What is fetched where something is under way, also from peers that are gone: all others
        have nothing to do and no deadline.
        """
        self._sources = itertools.count(_FIRST_SOURCE)
        self._news: list[FromHost] = []
        """What all Schedulers are to be told."""
        self._pulled: list[HostPageId] = []
        self._is_allocating = False
        self.readers = Readers(settings, shared)

    @property
    def fetchings(self) -> list[Fetching]:
        """What is fetched from each peer, and what was from those that are gone."""
        return list(dict.fromkeys([*(each.fetching for each in self._peers.values()), *self._busy]))

    @property
    def busy(self) -> list[Fetching]:
        """What is fetched where something is under way."""
        return list(self._busy)

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would go on with what did not fit into this turn."""
        return self.readers.has_work or any(each.has_work for each in self._busy)

    @property
    def next_deadline_s(self) -> float | None:
        """The time at which time alone changes something; None: never."""
        times = (each.next_deadline_s for each in self._busy)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def use(self, source: SourceId) -> Fetching | None:
        """What is fetched from a source, to look something up; None if it is no peer, or gone."""
        connection = self._connections.get(source)
        if connection is None:
            return None
        fetching = self._peers[connection].fetching
        self._busy[fetching] = None
        return fetching

    def allow_allocation(self) -> None:
        """Allow pulls to take pages: no copy of an earlier owner of the arena is in flight."""
        self._is_allocating = True
        for fetching in self.fetchings:
            fetching.reads.allow_allocation()

    def take(self, event: PeerEvent, now_s: float) -> None:
        """Take an event of peers or readers; stale ones change nothing."""
        match event:
            case PeerAttached(connection, name):
                self._attach(connection, name)
            case FromPeer(connection, message):
                if (peer := self._peers.get(connection)) is not None:
                    self._hear(peer, message, now_s)
            case PeerLost(connection):
                self._lose(connection)
            case ReaderAttached(connection):
                self.readers.attach(connection)
            case FromReader(connection, order):
                self.readers.take(connection, order)
            case ReaderLost(connection):
                self.readers.lose(connection)
            case PagesSent(connection, batch_id):
                self.readers.finish(connection, batch_id)
            case _:
                assert_never(event)

    def _attach(self, connection: ConnectionId, name: str) -> None:
        source = SourceId(next(self._sources))
        fetching = Fetching(
            self._settings, self._shared, label="peer", brings=PageSource.PEER, is_in_use=True
        )
        fetching.orders.attach(connection, _NO_PID)
        if self._is_allocating:
            fetching.reads.allow_allocation()
        self._peers[connection] = Peer(
            source=source, connection=connection, name=name, fetching=fetching
        )
        self._connections[source] = connection
        self._news.append(PeerFound(source=source, name=name))

    def _hear(self, peer: Peer, message: ObjectsDone | MirrorUpdate, now_s: float) -> None:
        match message:
            case MirrorUpdate():
                self._news.append(replace(message, source=peer.source))
            case ObjectsDone():
                self._busy[peer.fetching] = None
                order = peer.fetching.orders.finish(message, now_s)
                peer.fetching.finish(message, now_s)
                if order.kind is OrderKind.READ:
                    self._note_pulled(order, message.statuses)
            case _:
                assert_never(message)

    def _note_pulled(self, order: Order, statuses: bytes) -> None:
        names = [order.name(i) for i, code in enumerate(statuses) if code == ObjectStatus.OK]
        found = [self._shared.index.find(group, key) for group, key in names]
        self._pulled += [page_id for page_id in found if page_id is not None]

    def take_pulled(self) -> list[HostPageId]:
        """Take the pages that have come from other nodes: L3 may lack them."""
        pulled, self._pulled = self._pulled, []
        return pulled

    def _lose(self, connection: ConnectionId) -> None:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        del self._connections[peer.source]
        self._busy[peer.fetching] = None
        for page_id in peer.fetching.lose():
            self._shared.index.free(page_id)
        self._counters["peers_lost"] += 1
        self._news.append(PeerGone(source=peer.source))

    def introduce(self) -> list[PeerFound]:
        """What a Scheduler that has just come is told; the keys of each peer come anew."""
        for peer in self._peers.values():
            self._effects.append(AskForKeys(peer.connection))
        return [PeerFound(source=peer.source, name=peer.name) for peer in self._peers.values()]

    def take_news(self) -> list[FromHost]:
        """Take what all Schedulers are to be told."""
        news, self._news = self._news, []
        return news

    def advance(self, now_s: float) -> None:
        """Give up what is overdue, and order what may be ordered; called after each event."""
        for fetching in self._busy:
            fetching.give_up_some(now_s)
            fetching.dispatch(now_s)
            # L3 is written what it lacks; a peer is not.
            fetching.orders.missing.take_news()

    def take_reports(self, now_s: float) -> list[tuple[ConnectionId, LookupProgress]]:
        """Take what Schedulers are told of lookups; after that it is known who is busy still."""
        reports = [each for busy in self._busy for each in busy.lookups.take_reports(now_s)]
        self._busy = {each: None for each in self._busy if not each.is_idle}
        return reports

    def check(self) -> None:
        """Raise AccountingError if an event would not go over all that is under way."""
        for peer in self._peers.values():
            fetching = peer.fetching
            has_deadline = fetching.next_deadline_s is not None
            is_under_way = fetching.has_work or has_deadline or not fetching.is_idle
            if is_under_way and fetching not in self._busy:
                raise AccountingError(f"what is under way with peer {peer.name} is left alone")
        sources = {peer.source: connection for connection, peer in self._peers.items()}
        if sources != self._connections:
            raise AccountingError(f"peers {sources} are found as {self._connections}")

    def figures(self) -> dict[str, int]:
        """How many nodes can be pulled from and pull from this one, and what is being sent."""
        return {
            "peers": len(self._peers),
            "peer_readers": self.readers.num_attached,
            "pages_sending": self.readers.num_pins,
        }
