"""Links without a socket, for tests: messages are still encoded and decoded."""

import asyncio
import contextlib
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from raydix.runtime.actors.links.frames import FrameTooLarge, check_body
from raydix.runtime.actors.links.inbox import Inbox
from raydix.runtime.actors.links.link import INBOX_BYTES, LinkClosed, max_buffered_bytes
from raydix.runtime.messages.codec import Message, decode, encode
from raydix.runtime.messages.hello import Hello


class ThreadInbox:
    """Owns: bodies that wait for a blocking reader. Thread-safe; one taker."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._bodies: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_ended = False
        self._arrived: int | None = None
        """A descriptor at which there is something to read once something has changed; None: nobody
        has waited for that.
        """

    def put(self, body: bytes) -> None:
        """Add a body; after the end it is dropped."""
        with self._changed:
            if not self._is_ended:
                self._bodies.append(body)
                self.num_bytes += len(body)
                self._note_change()

    def take(self) -> bytes:
        """Wait for the oldest body. Raises LinkClosed after the last one."""
        with self._changed:
            while not self._bodies:
                if self._is_ended:
                    raise LinkClosed("the link was closed")
                self._changed.wait()
            body = self._bodies.popleft()
            self.num_bytes -= len(body)
            return body

    def has_body(self) -> bool:
        """Whether `take` would not wait."""
        with self._changed:
            return bool(self._bodies) or self._is_ended

    def wait_body_or(self, descriptor: int) -> bool:
        """Wait until `take` would not, or there is something to read at a descriptor."""
        with self._changed:
            if self._arrived is None:
                self._arrived = os.eventfd(0)
                weakref.finalize(self, os.close, self._arrived)
            arrived = self._arrived
        arrivals = select.poll()
        for each in (arrived, descriptor):
            arrivals.register(each, select.POLLIN)
        while not self.has_body():
            ready = [each for each, _ in arrivals.poll()]
            if arrived in ready:
                os.eventfd_read(arrived)
            if descriptor in ready:
                break
        return self.has_body()

    def _note_change(self) -> None:
        self._changed.notify_all()
        if self._arrived is not None:
            os.eventfd_write(self._arrived, 1)

    def wait_ended(self) -> None:
        """Return once nothing more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended)

    def end(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._is_ended = True
            self._note_change()

    def drop(self) -> None:
        """End, and forget what is here."""
        with self._changed:
            self._bodies.clear()
            self.num_bytes = 0
            self._is_ended = True
            self._note_change()


@dataclass(frozen=True, slots=True)
class _Peer:
    """What an asyncio end needs of the other one."""

    put: Callable[[bytes], None]
    end: Callable[[], None]
    buffered_bytes: Callable[[], int]


class InProcessLink:
    """A `Link` whose peer is in this process."""

    def __init__(self, hello: Hello, on_taken: Callable[[int], None]) -> None:
        self._hello = hello
        self._peer: _Peer | None = None
        self._is_closed = False
        self.inbox = Inbox(on_taken)

    def join(self, peer: _Peer) -> None:
        """Name the other end. Called once, before use."""
        self._peer = peer

    @property
    def hello(self) -> Hello:
        """The peer, as it introduced itself."""
        return self._hello

    @property
    def buffered_bytes(self) -> int:
        """The bytes that the peer has not received yet."""
        return 0 if self._peer is None else self._peer.buffered_bytes()

    @property
    def is_closed(self) -> bool:
        """Whether `send` would raise."""
        return self._is_closed

    def send(self, message: Message) -> None:
        """Put a message into the peer's inbox. A peer that reads too slowly loses the link."""
        if self._is_closed or self._peer is None:
            raise LinkClosed("the link is closed")
        if self.buffered_bytes > max_buffered_bytes(self._hello.role):
            self.close()
            raise LinkClosed("the peer did not read")
        try:
            self._peer.put(_body(message))
        except FrameTooLarge as error:
            self.close()
            raise LinkClosed(str(error)) from error

    async def receive(self) -> Message:
        """Wait for the next message in the inbox."""
        return decode(await self.inbox.take())

    def close(self) -> None:
        """End the link for both ends; the peer still receives what was sent."""
        self.inbox.drop("the link was closed")
        if not self._is_closed and self._peer is not None:
            self._peer.end()
        self._is_closed = True

    def cut(self) -> None:
        """End the link as `close` does, since nothing is buffered here."""
        self.close()

    def peer_ended(self) -> None:
        """The other end closed: what it sent can still be received."""
        self._is_closed = True
        self.inbox.end("the peer closed the link")


class InProcessBlockingLink:
    """A `BlockingLink` whose peer lives on a loop of this process."""

    def __init__(self, own: Hello, peer: Hello, loop: asyncio.AbstractEventLoop) -> None:
        self._hello = peer
        self._loop = loop
        self._in_flight_bytes = 0
        self._taken = threading.Condition()
        self._is_closed = False
        self.inbox = ThreadInbox()
        self.peer = InProcessLink(own, self._on_taken)
        self.peer.join(_Peer(self.inbox.put, self.peer_ended, lambda: self.inbox.num_bytes))

    @property
    def hello(self) -> Hello:
        """The peer, as it introduced itself."""
        return self._hello

    def send(self, message: Message) -> None:
        """Put a message into the peer's inbox."""
        try:
            body = _body(message)
        except FrameTooLarge as error:
            self.close()
            raise LinkClosed(str(error)) from error

        with self._taken:
            self._taken.wait_for(lambda: self._in_flight_bytes <= INBOX_BYTES or self._is_closed)
            if self._is_closed:
                raise LinkClosed("the link is closed")
            self._in_flight_bytes += len(body)
            # Under the lock, so that two senders cannot swap places after their turn came.
            self._on_loop(self.peer.inbox.put, body)

    def receive(self) -> Message:
        """Wait for the next message in the inbox."""
        return decode(self.inbox.take())

    def has_message(self) -> bool:
        """Whether something is in the inbox, or an end has closed."""
        return self.inbox.has_body()

    def wait_message_or(self, descriptor: int) -> bool:
        """Wait for the inbox and for a descriptor."""
        return self.inbox.wait_body_or(descriptor)

    def wait_ended(self) -> None:
        """Return once an end has closed."""
        self.inbox.wait_ended()

    def close(self) -> None:
        """End the link for both ends and wake those who wait."""
        self.inbox.drop()
        with self._taken:
            if not self._is_closed:
                self._is_closed = True
                self._on_loop(self.peer.peer_ended)
            self._taken.notify_all()

    def peer_ended(self) -> None:
        """The other end closed: what it sent can still be received."""
        self.inbox.end()
        with self._taken:
            self._is_closed = True
            self._taken.notify_all()

    def _on_taken(self, num_bytes: int) -> None:
        with self._taken:
            self._in_flight_bytes -= num_bytes
            self._taken.notify_all()

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        # A closed loop has no reader left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)


def in_process_pair(left: Hello, right: Hello) -> tuple[InProcessLink, InProcessLink]:
    """Two joined ends on one loop; the first belongs to `left`."""
    left_end, right_end = InProcessLink(right, _ignore), InProcessLink(left, _ignore)
    left_end.join(
        _Peer(right_end.inbox.put, right_end.peer_ended, lambda: right_end.inbox.num_bytes)
    )
    right_end.join(_Peer(left_end.inbox.put, left_end.peer_ended, lambda: left_end.inbox.num_bytes))
    return left_end, right_end


def in_process_blocking_pair(
    left: Hello, right: Hello
) -> tuple[InProcessLink, InProcessBlockingLink]:
    """Two joined ends: `left`'s, on the running loop, and `right`'s, for threads."""
    blocking = InProcessBlockingLink(right, left, asyncio.get_running_loop())
    return blocking.peer, blocking


def _body(message: Message) -> bytes:
    """What a socket would carry. Raises FrameTooLarge."""
    body = encode(message)
    check_body(body)
    return body


def _ignore(_: int) -> None:
    """Nobody waits for the reader."""
