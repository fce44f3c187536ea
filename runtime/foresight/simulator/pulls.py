"""How a node's HostMemory pulls pages from those of others: links, and the time it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from raydix.ids import BatchId, ConnectionId
from raydix.runtime.cache.host import events
from raydix.runtime.foresight.simulator.links import End, Link
from raydix.runtime.foresight.simulator.world import World
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    ObjectsDone,
    ObjectStatus,
    ReadObjects,
)
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages, TellKeys, ToPeer

_REDIAL_S = 0.1


class PullPlace(Protocol):
    """Another node, as one that pulls from it knows it."""

    name: str

    @property
    def pulls(self) -> "Pulls | None":
        """Who answers there; None while its HostMemory is dead."""


@dataclass(frozen=True, slots=True)
class SentPages:
    """What another node sends of a batch, page by page."""

    batch_id: BatchId
    statuses: bytes


class Pulls:
    """Owns: links to and from other nodes, for one life of HostMemory."""

    def __init__(
        self,
        world: World,
        others: Callable[[], Sequence[PullPlace]],
        page_bytes: tuple[int, ...],
        post: Callable[[events.HostEvent], None],
    ) -> None:
        self._world, self._others, self._post = world, others, post
        self._page_bytes = max(page_bytes)
        self._peers: dict[ConnectionId, tuple[Link, PullPlace]] = {}
        self._readers: dict[ConnectionId, Link] = {}
        self._free_s = 0.0
        self._is_over = False

    def start(self) -> None:
        """Dial all other nodes, once all that are there at first have been made."""
        self._world.after(0.0, self._dial_all)

    def _dial_all(self) -> None:
        for place in self._others():
            self._dial(place)

    def stop(self) -> None:
        """HostMemory is killed: its links close, and nobody answers any more."""
        self._is_over = True
        for link in (*(link for link, _ in self._peers.values()), *self._readers.values()):
            link.close()

    def _dial(self, place: PullPlace) -> None:
        if self._is_over:
            return
        if place.pulls is None:
            self._world.after(_REDIAL_S, partial(self._dial, place))
            return
        link = self._world.new_link()
        self._peers[link.number] = link, place
        link.listen(End.DIALLER, partial(self._hear, link), partial(self._lose, link))
        link.carry(End.ACCEPTOR, partial(place.pulls.accept, link))
        self._post(events.PeerAttached(link.number, place.name))

    def _lose(self, link: Link) -> None:
        _, place = self._peers.pop(link.number)
        if not self._is_over:
            self._post(events.PeerLost(link.number))
            self._world.after(_REDIAL_S, partial(self._dial, place))

    def order(self, connection: ConnectionId, order: events.StorageOrder) -> bool:
        """Carry out what the core orders of a peer; False if that is none."""
        if connection not in self._peers:
            return False
        link, _ = self._peers[connection]
        match order:
            case ReadObjects():
                pull = PullPages(batch_id=order.batch_id, keys=order.keys, group=order.group)
                link.send(End.ACCEPTOR, pull)
            case AskExists() | CancelBatch():
                link.send(End.ACCEPTOR, order)
            case _:
                raise AssertionError(f"{order} is nothing to ask of another node")
        return True

    def ask_for_keys(self, connection: ConnectionId) -> None:
        """Have a peer tell its keys once more."""
        if connection in self._peers:
            self._peers[connection][0].send(End.ACCEPTOR, TellKeys())

    def _hear(self, link: Link, message: ObjectsDone | MirrorUpdate | SentPages) -> None:
        if isinstance(message, SentPages):
            message = ObjectsDone(batch_id=message.batch_id, statuses=message.statuses)
        self._post(events.FromPeer(link.number, message))

    def accept(self, link: Link) -> None:
        """Another node dials, to pull from this one."""
        if self._is_over:
            link.close()
            return
        number = link.number
        self._readers[number] = link
        link.listen(End.ACCEPTOR, partial(self._hear_reader, number), partial(self._leave, number))
        self._post(events.ReaderAttached(number))

    def _hear_reader(self, number: ConnectionId, message: ToPeer) -> None:
        self._post(events.FromReader(number, message))

    def _leave(self, number: ConnectionId) -> None:
        if self._readers.pop(number, None) is not None and not self._is_over:
            self._post(events.ReaderLost(number))

    def tell(self, effect: events.ToReader) -> None:
        """Send a message to a reader, if it is still there."""
        if (link := self._readers.get(effect.connection)) is not None:
            link.send(End.DIALLER, effect.message)

    def send(self, effect: events.SendPages) -> None:
        """Send pages one batch after the other, which takes its time."""
        num_bytes = self._page_bytes * sum(page is not None for page in effect.page_ids)
        seconds = self._world.draw_copy_s(self._world.profile.pull, num_bytes)
        self._free_s = max(self._world.now_s, self._free_s) + seconds
        self._world.clock.at(self._free_s, partial(self._finish, effect))

    def _finish(self, effect: events.SendPages) -> None:
        if self._is_over:
            return
        there, missing = ObjectStatus.OK, ObjectStatus.MISSING
        statuses = bytes(missing if page is None else there for page in effect.page_ids)
        if (link := self._readers.get(effect.connection)) is not None:
            link.send(End.DIALLER, SentPages(effect.batch_id, statuses))
        self._post(events.PagesSent(effect.connection, effect.batch_id))
