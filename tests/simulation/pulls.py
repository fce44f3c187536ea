"""How the HostMemory of one node pulls pages from those of others, as a process does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from raydix.ids import BatchId, ConnectionId
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages, TellKeys, ToPeer

if TYPE_CHECKING:
    from tests.simulation.host_process import HostProcess
    from tests.simulation.node import Node
    from tests.simulation.storage import PagePart

_REDIAL_S = 0.01
Content = tuple["PagePart", ...]
"""What a page holds, per rank of a lane."""


@dataclass(frozen=True, slots=True)
class SentPage:
    """One page as it comes over the network, and the checksum with which it left."""

    content: Content
    checksum: int


@dataclass(frozen=True, slots=True)
class SentPages:
    """What another node sends of a batch; None for a page that it lacks."""

    batch_id: BatchId
    pages: tuple[SentPage | None, ...]


@dataclass(frozen=True, slots=True)
class LeasedPages:
    """Where another node has the pages of a batch, to be read; None for a page that it lacks."""

    batch_id: BatchId
    page_ids: tuple[int | None, ...]
    checksums: tuple[int | None, ...]
    """What was computed of each page when it was leased."""


@dataclass(frozen=True, slots=True)
class PagesRead:
    """The reader needs the leased pages of a batch no more."""

    batch_id: BatchId


FromOther = ObjectsDone | MirrorUpdate | SentPages | LeasedPages


@dataclass(slots=True, eq=False)
class _PeerLink:
    """One link to a node that pages are pulled from."""

    link: Link
    node: Node
    reads: dict[BatchId, ReadObjects] = field(default_factory=dict)
    """Pulls that are not answered."""


class Pulls:
    """Owns: links to other nodes, for one life of HostMemory, and what was asked over them.

    What comes is written at once, and nothing once a link has closed.
    """

    def __init__(self, host: HostProcess, node: Node) -> None:
        self._host, self._node, self._world = host, node, node.world
        self._peers: dict[ConnectionId, _PeerLink] = {}
        self._readers: dict[ConnectionId, Link] = {}
        self._leases: set[tuple[ConnectionId, BatchId]] = set()
        """The batches that readers may be reading."""
        self._is_over = False

    def start(self) -> None:
        """Dial all other nodes, and those that come later."""
        for node in self._node.others:
            self._dial(node)

    def stop(self) -> None:
        """HostMemory is killed: its links close, and nobody answers any more."""
        self._is_over = True
        for link in (*(peer.link for peer in self._peers.values()), *self._readers.values()):
            link.close()

    def flap(self) -> None:
        """The links to other nodes break while all live."""
        for peer in tuple(self._peers.values()):
            self._world.num_faults["peer link broken"] += 1
            peer.link.close()

    def _dial(self, node: Node) -> None:
        if self._is_over:
            return
        other = node.host_memory
        if other is None or other.core is None:
            self._world.after(_REDIAL_S, partial(self._dial, node))
            return
        link = self._world.new_link()
        peer = _PeerLink(link, node)
        self._peers[link.number] = peer
        link.listen(End.DIALLER, partial(self._hear, peer), partial(self._lose, peer))
        link.carry(End.ACCEPTOR, partial(other.pulls.accept, link))
        self._host.post(host_events.PeerAttached(link.number, node.name))

    def _lose(self, peer: _PeerLink) -> None:
        del self._peers[peer.link.number]
        if self._is_over:
            return
        self._host.post(host_events.PeerLost(peer.link.number))
        self._world.after(self._world.draw_redial_s(), partial(self._dial, peer.node))

    def order(self, connection: ConnectionId, order: host_events.StorageOrder) -> bool:
        """Carry out what the core orders of a peer; False if that is none."""
        peer = self._peers.get(connection)
        if peer is None:
            return False
        match order:
            case ReadObjects():
                peer.reads[order.batch_id] = order
                pull = PullPages(batch_id=order.batch_id, keys=order.keys, group=order.group)
                peer.link.send(End.ACCEPTOR, pull)
            case AskExists() | CancelBatch():
                peer.link.send(End.ACCEPTOR, order)
            case _:
                raise AssertionError(f"{order} is nothing to ask of another node")
        return True

    def ask_for_keys(self, connection: ConnectionId) -> None:
        """Have a peer tell its keys once more."""
        if (peer := self._peers.get(connection)) is not None:
            peer.link.send(End.ACCEPTOR, TellKeys())

    def _hear(self, peer: _PeerLink, message: FromOther) -> None:
        match message:
            case ObjectsDone() | MirrorUpdate():
                self._host.post(host_events.FromPeer(peer.link.number, message))
            case SentPages():
                self._settle(peer, message)
            case LeasedPages():
                self.begin_reading(peer, message)

    def _settle(self, peer: _PeerLink, sent: SentPages) -> None:
        """Answer a batch, once each of its pages was compared with its checksum."""
        order = peer.reads.pop(sent.batch_id)
        pairs = zip(order.host_page_ids.tolist(), sent.pages, strict=True)
        statuses = bytes(self.receive(host_page, page) for host_page, page in pairs)
        done = ObjectsDone(batch_id=sent.batch_id, statuses=statuses)
        self._host.post(host_events.FromPeer(peer.link.number, done))

    def begin_reading(self, peer: _PeerLink, leased: LeasedPages) -> None:
        """Read leased pages, which takes its time: half of what is read is of its end."""
        holder = peer.node.host_memory
        begun = [None if page is None else _content(peer.node, page) for page in leased.page_ids]
        read_s = self._world.draw_pull_s(len(leased.page_ids))
        self._world.after(read_s, partial(self._end_reading, peer, leased, holder, begun))

    def _end_reading(
        self,
        peer: _PeerLink,
        leased: LeasedPages,
        holder: HostProcess | None,
        begun: list[Content | None],
    ) -> None:
        number = peer.link.number
        if self._is_over or self._peers.get(number) is not peer:
            # The link has ended, and with it the lease: what was read is dropped.
            return
        ended = [None if page is None else _content(peer.node, page) for page in leased.page_ids]
        if holder is not None and holder.pulls.serves(number):
            assert begun == ended, "a leased page has changed while it was read"

        pages = [
            None if now is None or checksum is None else SentPage(self._damaged(now), checksum)
            for now, checksum in zip(ended, leased.checksums, strict=True)
        ]
        peer.link.send(End.ACCEPTOR, PagesRead(leased.batch_id))
        self._settle(peer, SentPages(leased.batch_id, tuple(pages)))

    def receive(self, host_page: int, sent: SentPage | None) -> ObjectStatus:
        """Write a page that has come, and compare its checksum."""
        if sent is None:
            return ObjectStatus.MISSING
        self._node.arena[host_page] = list(sent.content)
        is_sound = hash(sent.content) == sent.checksum
        return ObjectStatus.OK if is_sound else ObjectStatus.BAD_CHECKSUM

    def accept(self, link: Link) -> None:
        """Another node dials, to pull from this one."""
        if self._is_over:
            link.close()
            return
        self._readers[link.number] = link
        number = link.number
        link.listen(End.ACCEPTOR, partial(self._hear_reader, number), partial(self._leave, number))
        self._host.post(host_events.ReaderAttached(number))

    def serves(self, number: ConnectionId) -> bool:
        """Whether a reader's link is open, as far as is known here."""
        return not self._is_over and number in self._readers

    def _hear_reader(self, number: ConnectionId, message: ToPeer | PagesRead) -> None:
        if isinstance(message, PagesRead):
            self._end_lease(number, message.batch_id)
        else:
            self._host.post(host_events.FromReader(number, message))

    def _leave(self, number: ConnectionId) -> None:
        if self._readers.pop(number, None) is not None and not self._is_over:
            self._host.post(host_events.ReaderLost(number))
            for connection, batch_id in sorted(self._leases):
                if connection == number:
                    self._end_lease(connection, batch_id)

    def _end_lease(self, number: ConnectionId, batch_id: BatchId) -> None:
        self._leases.remove((number, batch_id))
        self._host.post(host_events.PagesSent(number, batch_id))

    def tell(self, effect: host_events.ToReader) -> None:
        """Send a message to a reader, if it is still there."""
        if (link := self._readers.get(effect.connection)) is not None:
            link.send(End.DIALLER, effect.message)

    def send(self, effect: host_events.SendPages) -> None:
        """Send pages, which takes its time: what they hold at the end of it is sent. Or lease them
        to the reader, who reads them.
        """
        fraction = self._world.faults.leased_fraction
        if fraction and self._world.random.random() < fraction:
            self.lease(effect)
            return
        pull_s = self._world.draw_pull_s(len(effect.page_ids))
        self._world.after(pull_s, partial(self._finish_sending, effect))

    def lease(self, effect: host_events.SendPages) -> None:
        """Tell a reader where pages lie, which stay until it has read them."""
        number, batch_id = effect.connection, effect.batch_id
        if (link := self._readers.get(number)) is None:
            self._host.post(host_events.PagesSent(number, batch_id))
            return
        self._leases.add((number, batch_id))
        page_ids = tuple(effect.page_ids)
        checksums = tuple(
            None if page is None else hash(_content(self._node, page)) for page in page_ids
        )
        link.send(End.DIALLER, LeasedPages(batch_id, page_ids, checksums))

    def _finish_sending(self, effect: host_events.SendPages) -> None:
        if self._is_over:
            return
        pages = tuple(None if page is None else self._sent(page) for page in effect.page_ids)
        if (link := self._readers.get(effect.connection)) is not None:
            link.send(End.DIALLER, SentPages(effect.batch_id, pages))
        self._host.post(host_events.PagesSent(effect.connection, effect.batch_id))

    def _sent(self, page_id: int) -> SentPage:
        """A page as it leaves; now and then it is damaged on its way."""
        content = _content(self._node, page_id)
        return SentPage(self._damaged(content), hash(content))

    def _damaged(self, content: Content) -> Content:
        """What comes of a page."""
        if self._world.random.random() < self._world.faults.bad_pull_fraction:
            return ((None,) * self._node.settings.page_size,) * len(content)
        return content


def _content(node: Node, page_id: int) -> Content:
    """What a page of a node's arena holds now."""
    return tuple(node.arena[page_id])
