"""Pages on their way from another node: where the bytes of its streams go. No I/O.

Every stream of a link has a `PageInflow`, which says where its next bytes belong: into the head of
a piece, or straight into a page of the arena. All of them share the link's `ArrivingPages`. What
has not been asked for, or has come before, is refused before a byte of it is written.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from raydix.errors import AccountingError
from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.actors.pulls.pieces import HEAD_BYTES, PeerMisbehaves, Piece
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, ReadObjects
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.tiers.host_arena import HostArena


@dataclass(slots=True)
class _Pull:
    """One batch that was asked for."""

    order: ReadObjects
    keys: list[PageKey]
    statuses: list[ObjectStatus | None]
    """What has become of each page; None: nothing yet."""
    num_open: int
    is_claimed: list[bool] = field(init=False)
    """Whether a stream has said of a page that it brings it, or that it is lacking."""

    def __post_init__(self) -> None:
        self.is_claimed = [False] * len(self.keys)


@dataclass(frozen=True, slots=True)
class ArrivingPage:
    """A page that a stream brings."""

    batch_id: BatchId
    place: int
    ref: ObjectRef
    """What it must be, and where it goes."""


class ArrivingPages:
    """Owns: the batches that were asked for over one link, and which of their pages have come.

    Thread-safe. A batch is answered once all its pages are settled, by `on_done`, which must not
    raise; nobody writes its pages after that.
    """

    def __init__(self, arena: HostArena, on_done: Callable[[ObjectsDone], None]) -> None:
        self._arena = arena
        self._on_done = on_done
        self._pulls: dict[BatchId, _Pull] = {}
        self._lock = threading.Lock()
        self._num_bytes = 0

    @property
    def num_open(self) -> int:
        """The number of batches that are not answered."""
        return len(self._pulls)

    def progress(self) -> int | None:
        """The bytes that have come so far over all streams; None while none are awaited."""
        return self._num_bytes if self._pulls else None

    def ask(self, order: ReadObjects) -> None:
        """Note a batch that is about to be asked for; its pages are FILLING until the answer."""
        keys = split_keys(order.keys)
        pull = _Pull(order, keys, [None] * len(keys), len(keys))
        with self._lock:
            if order.batch_id in self._pulls:
                raise AccountingError(f"batch {order.batch_id} is asked for twice")
            self._pulls[order.batch_id] = pull

    def claim(self, piece: Piece) -> list[ArrivingPage]:
        """The pages that follow the head of a piece; those that are lacking are settled at once.

        Raises PeerMisbehaves if the piece is not what was asked for, or has come before.
        """
        with self._lock:
            pull = self._pulls.get(piece.batch_id)
            if pull is None:
                raise PeerMisbehaves(f"pages of batch {piece.batch_id} come, which is not awaited")
            self._check(piece, pull)
            for place in piece.places:
                pull.is_claimed[place] = True

        pages = []
        for place, is_held in zip(piece.places, piece.is_held, strict=True):
            page = self._page(pull, place)
            if is_held:
                pages.append(page)
            else:
                self.settle(page, ObjectStatus.MISSING)
        return pages

    def _check(self, piece: Piece, pull: _Pull) -> None:
        """Raise PeerMisbehaves unless the piece was asked for, in this shape, and is new."""
        group, num_pages = pull.order.group, len(pull.keys)
        object_bytes = self._arena.geometry.object_bytes(group)
        if (piece.group, piece.object_bytes) != (group, object_bytes):
            raise PeerMisbehaves(
                f"batch {piece.batch_id} comes with pages of {piece.object_bytes} bytes of group "
                f"{piece.group}; asked for were {object_bytes} bytes of group {group}"
            )
        if piece.places.stop > num_pages:
            raise PeerMisbehaves(
                f"pages {piece.places} of batch {piece.batch_id} come, which has {num_pages}"
            )
        if any(pull.is_claimed[place] for place in piece.places):
            raise PeerMisbehaves(f"pages {piece.places} of batch {piece.batch_id} come again")

    def _page(self, pull: _Pull, place: int) -> ArrivingPage:
        group, page_id = pull.order.group, HostPageId(int(pull.order.host_page_ids[place]))
        ref = ObjectRef(
            ObjectName(pull.keys[place], group),
            self._arena.page(page_id, group),
            self._arena.geometry.page_offset(page_id, group),
        )
        return ArrivingPage(pull.order.batch_id, place, ref)

    def settle(self, page: ArrivingPage, status: ObjectStatus) -> None:
        """Note what has become of a page, once its bytes were compared with its name."""
        with self._lock:
            pull = self._pulls[page.batch_id]
            assert pull.statuses[page.place] is None, "a page is claimed once"
            pull.statuses[page.place] = status
            pull.num_open -= 1
            if pull.num_open:
                return
            del self._pulls[page.batch_id]
        statuses = bytes(status for status in pull.statuses if status is not None)
        self._on_done(ObjectsDone(batch_id=page.batch_id, statuses=statuses))

    def note_bytes(self, num_bytes: int) -> None:
        """Note that so many bytes have come."""
        with self._lock:
            self._num_bytes += num_bytes


class PageInflow:
    """Owns: how far one stream has come in its pieces."""

    def __init__(self, pages: ArrivingPages) -> None:
        self._pages = pages
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._coming: deque[ArrivingPage] = deque()
        """The pages of the piece that are not whole yet."""
        self._rest = self._head

    @property
    def is_between_pieces(self) -> bool:
        """Whether the stream may end here."""
        return not self._coming and len(self._rest) == HEAD_BYTES

    @property
    def rest(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return self._rest

    def take(self, num_bytes: int) -> ArrivingPage | None:
        """Note that bytes have come into `rest`; returns the page that is whole now, if one is.

        Raises PeerMisbehaves; the stream is of no use after that.
        """
        self._rest = self._rest[num_bytes:]
        self._pages.note_bytes(num_bytes)
        if self._rest:
            return None

        page = None
        if self._coming:
            page = self._coming.popleft()
        else:
            self._coming.extend(self._pages.claim(Piece.unpack(self._head)))
        self._rest = self._coming[0].ref.page if self._coming else self._head
        return page
