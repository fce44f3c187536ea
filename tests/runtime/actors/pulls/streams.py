"""Streams of pages for tests: in memory, over TCP and under TLS; and what stands at their ends."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls.arriving import ArrivingPages
from raydix.runtime.actors.pulls.leaving import LeavingPages
from raydix.runtime.actors.pulls.page_stream import (
    PageStream,
    StreamEnded,
    StreamListener,
    dial_stream,
)
from raydix.runtime.actors.pulls.streaming import receive_pages
from raydix.runtime.cache.host.events import SendPages
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, ReadObjects
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import content, layout_of, make_key

SECRET = b"a secret of nodes"
WAIT_S = 60.0
"""The time for what must come; nothing is measured by it."""
BY_NAME, BY_TCP = "127.0.0.1", "localhost"
"""A listener is reached within the host by the name that it has itself, and by others over TCP."""
_CAPACITY_BYTES = 1 << 16


class MemoryStream:
    """One end of a pipe in memory, which takes so much at a time and gives it out in odd pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._changed = threading.Condition()
        self._is_closed = False
        self._num_received = 0

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                rest = rest[self._put(rest) :]

    def _put(self, rest: memoryview) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._bytes) < _CAPACITY_BYTES)
            if self._is_closed:
                raise StreamEnded("the pipe is closed")
            room = _CAPACITY_BYTES - len(self._bytes)
            self._bytes += rest[:room]
            self._changed.notify_all()
            return min(room, len(rest))

    def receive_into(self, buffer: memoryview) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._bytes)
            # 1, 8, 64, ... bytes at a time, whatever the frames are.
            self._num_received += 1
            num_bytes = min(len(self._bytes), len(buffer), 8 ** (self._num_received % 6))
            buffer[:num_bytes] = self._bytes[:num_bytes]
            del self._bytes[:num_bytes]
            self._changed.notify_all()
            return num_bytes

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def release(self) -> None:
        """Nothing is taken."""


OpenPair = Callable[[], tuple[PageStream, PageStream]]
"""Opens a stream; returns its sending and its receiving end."""


def open_in_memory() -> tuple[PageStream, PageStream]:
    stream = MemoryStream()
    return stream, stream


@contextmanager
def open_by_socket(
    files: TlsFiles | None, patience_s: float, host: str = BY_TCP
) -> Iterator[OpenPair]:
    """Streams over the loopback, under TLS if there are files."""
    accepted: queue.SimpleQueue[PageStream] = queue.SimpleQueue()
    hello = Hello(role=Role.PAGE_STREAM, name="node", incarnation=1, pid=1)
    listener = StreamListener(
        TcpAddress(BY_NAME, 0),
        hello,
        SECRET,
        lambda _, stream: accepted.put(stream),
        tls=None if files is None else files.for_listener(),
        patience_s=patience_s,
    )
    ends: list[PageStream] = []

    def open_pair() -> tuple[PageStream, PageStream]:
        tls = None if files is None else files.for_dialer()
        receiver = dial_stream(TcpAddress(host, listener.port), hello, SECRET, tls)
        sender = accepted.get(timeout=WAIT_S)
        ends.extend((sender, receiver))
        return sender, receiver

    try:
        yield open_pair
    finally:
        listener.close()
        for end in ends:
            end.close()
            end.release()


@dataclass(slots=True, eq=False)
class Holder:
    """The node that has pages: page i of its arena holds the content of key i."""

    arena: HostArena
    sent: queue.SimpleQueue[BatchId] = field(default_factory=queue.SimpleQueue)
    leaving: LeavingPages = field(init=False)

    def __post_init__(self) -> None:
        self.leaving = LeavingPages(self.arena, self.sent.put)
        for page in range(self.arena.geometry.num_host_pages):
            payload = self.arena.payload(HostPageId(page), 0)
            payload[:] = content(page, len(payload))

    def send(self, batch_id: int, pages: Sequence[int], lacks: Sequence[int] = ()) -> None:
        """What the shell does once the pages of a pull are pinned."""
        keys = b"".join(map(make_key, pages))
        self.leaving.ask(PullPages(batch_id=BatchId(batch_id), keys=keys))
        found = tuple(None if page in lacks else HostPageId(page) for page in pages)
        self.leaving.send(SendPages(ConnectionId(1), BatchId(batch_id), found))


@dataclass(slots=True, eq=False)
class Reader:
    """The node that pulls, and its threads."""

    arena: HostArena
    namespace: Namespace
    done: queue.SimpleQueue[ObjectsDone] = field(default_factory=queue.SimpleQueue)
    arriving: ArrivingPages = field(init=False)
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arriving = ArrivingPages(self.arena, self.done.put)

    def ask(self, batch_id: int, keys: Sequence[int], pages: Sequence[int]) -> None:
        """Await these keys, in these pages of the arena."""
        self.arriving.ask(
            ReadObjects(
                batch_id=BatchId(batch_id),
                keys=b"".join(map(make_key, keys)),
                host_page_ids=int32_array(pages),
            )
        )

    def receive(self, stream: PageStream) -> None:
        """Take what a stream brings, in a thread."""
        thread = threading.Thread(
            target=receive_pages, args=[stream, self.arriving, self.namespace], daemon=True
        )
        thread.start()
        self.threads.append(thread)

    def wait_ended(self) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def statuses(self) -> list[ObjectStatus]:
        """The statuses of the next batch that is answered."""
        return [ObjectStatus(code) for code in self.done.get(timeout=WAIT_S).statuses]

    def holds(self, page: int, key: int) -> bool:
        """Whether a page has the content of a key."""
        payload = self.arena.payload(HostPageId(page), 0)
        return bytes(payload) == content(key, len(payload))


def make_ends(payload_bytes: int, num_pages: int) -> tuple[Holder, Reader]:
    """Two arenas of one layout, and whom they belong to."""
    layout: KvLayout = layout_of(payload_bytes)
    namespace = make_namespace(b"model", "v1", layout)
    arenas = [HostArena.create(layout, num_pages * layout.host_page_bytes(0)) for _ in range(2)]
    return Holder(arenas[0]), Reader(arenas[1], namespace)


def make_page(
    key: int, namespace: Namespace, payload_bytes: int, *, claimed: int | None = None
) -> bytearray:
    """A page as it travels; its header says `claimed`, which is the key unless told otherwise."""
    page = bytearray(64) + content(key, payload_bytes)
    name = make_key(key if claimed is None else claimed)
    fill_header(memoryview(page), ObjectIdentity(namespace.digest, 0, name))
    return page
