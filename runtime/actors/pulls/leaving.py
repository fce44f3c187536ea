"""Pages on their way to another node: which piece a stream sends next. No I/O."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from raydix.ids import BatchId
from raydix.runtime.actors.pulls.pieces import Piece, cut_into_pieces
from raydix.runtime.cache.host.events import SendPages
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker.object_header import fill_headers
from raydix.runtime.tiers.host_arena import HostArena


@dataclass(frozen=True, slots=True)
class LeavingPiece:
    """A piece, and the pages of it that are held."""

    piece: Piece
    refs: list[ObjectRef]

    def buffers(self, namespace: Namespace) -> Iterator[bytes | memoryview]:
        """What a stream carries of it, in order; the pages' headers are filled first."""
        fill_headers(self.refs, namespace)
        yield self.piece.pack()
        for ref in self.refs:
            yield ref.page


@dataclass(slots=True)
class _Sending:
    """One batch whose pages are pinned."""

    num_open: int
    """Pieces that are not sent yet."""
    waiting: deque[LeavingPiece] = field(default_factory=deque)


class LeavingPages:
    """Owns: what one reader has asked for, and which pieces of it are sent, are being, or wait.

    Thread-safe. Every batch of `send` ends by one `on_sent`, which must not raise: once all of its
    pieces have been sent, or at `close`.
    """

    def __init__(self, arena: HostArena, on_sent: Callable[[BatchId], None]) -> None:
        self._arena = arena
        self._on_sent = on_sent
        self._asked: dict[BatchId, PullPages] = {}
        """What was asked for, until the pages are pinned."""
        self._sending: dict[BatchId, _Sending] = {}
        self._num_sent = 0
        self._changed = threading.Condition()
        self._is_ended = False

    @property
    def num_open(self) -> int:
        """The number of batches that were asked for and are not sent."""
        return len(self._asked) + len(self._sending)

    def progress(self) -> int | None:
        """The number of pieces that were sent so far; None while none are to be."""
        return self._num_sent if self._sending else None

    def ask(self, message: PullPages) -> None:
        """Note what the reader has asked for; its pages are pinned next."""
        self._asked[message.batch_id] = message

    def send(self, effect: SendPages) -> None:
        """Let streams send pages, which do not change until `on_sent`."""
        asked = self._asked.pop(effect.batch_id)
        pieces = deque(self._pieces(asked, effect))
        with self._changed:
            if pieces and not self._is_ended:
                self._sending[effect.batch_id] = _Sending(len(pieces), pieces)
                self._changed.notify_all()
                return
        self._on_sent(effect.batch_id)

    def _pieces(self, asked: PullPages, effect: SendPages) -> Iterator[LeavingPiece]:
        group, geometry = asked.group, self._arena.geometry
        names = [ObjectName(key, group) for key in split_keys(asked.keys)]
        is_held = [page_id is not None for page_id in effect.page_ids]
        object_bytes = geometry.object_bytes(group)
        for piece in cut_into_pieces(effect.batch_id, group, object_bytes, is_held):
            refs = [
                ObjectRef(
                    names[place],
                    self._arena.page(page_id, group),
                    geometry.page_offset(page_id, group),
                )
                for place in piece.places
                if (page_id := effect.page_ids[place]) is not None
            ]
            yield LeavingPiece(piece, refs)

    def take(self) -> LeavingPiece | None:
        """Wait for the next piece, which the caller sends and then finishes; None: no more come."""
        with self._changed:
            while not self._is_ended:
                # The oldest batch first, so that it is whole soonest.
                for sending in self._sending.values():
                    if sending.waiting:
                        return sending.waiting.popleft()
                self._changed.wait()
        return None

    def finish(self, leaving: LeavingPiece) -> None:
        """A piece has been sent: nobody reads its pages for it any more."""
        batch_id = leaving.piece.batch_id
        with self._changed:
            self._num_sent += 1
            sending = self._sending[batch_id]
            sending.num_open -= 1
            if sending.num_open:
                return
            del self._sending[batch_id]
        self._on_sent(batch_id)

    def end(self) -> None:
        """Hand out no more pieces; what is being sent goes on. May be called twice."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """No stream sends any more: give back all that was not sent."""
        self.end()
        with self._changed:
            unsent = list(self._sending)
            self._sending.clear()
        for batch_id in unsent:
            self._on_sent(batch_id)
