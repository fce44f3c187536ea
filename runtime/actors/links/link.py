"""What a link promises, whatever carries it: whole messages, in order, until either end closes."""

import logging
from typing import Protocol

from raydix.errors import RaydixError
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role

logger = logging.getLogger(__name__)

CLIENT_MAX_BUFFERED_BYTES = 8 << 20
ACTOR_MAX_BUFFERED_BYTES = 256 << 20
CLIENT_MAX_FRAME_BYTES = 16 << 20
"""The largest frame of a client, unless its listener allows less: four million prompt tokens."""
INBOX_BYTES = 1 << 20
"""Received and not yet taken by the reader; past this the sender is made to wait."""


class LinkClosed(RaydixError):
    """The link was closed, its peer died, did not read, or was sent too much."""


class LinkRefused(LinkClosed):
    """The handshake failed: another secret, another build, no TLS there, or the end is closing."""


class LinkSilent(LinkClosed):
    """Whoever listens has not answered the handshake in time: stopped, busy, or waiting for TLS."""


def max_buffered_bytes(peer: Role) -> int:
    """What may wait for a peer that does not read before it counts as gone.

    A client is cut off early; between actors one plan may carry many long prompts.
    """
    return CLIENT_MAX_BUFFERED_BYTES if peer is Role.CLIENT else ACTOR_MAX_BUFFERED_BYTES


class AddressTaken(RaydixError):
    """Another listener lives at the address."""


class Link(Protocol):
    """The end of a link that lives on an asyncio loop. Not thread-safe; one reader."""

    @property
    def hello(self) -> Hello:
        """Who the peer is."""

    @property
    def buffered_bytes(self) -> int:
        """Sent and not yet taken over by the transport."""

    @property
    def is_closed(self) -> bool:
        """True once `send` would raise."""

    def send(self, message: Message) -> None:
        """Queue a message and return at once. Raises LinkClosed.

        If more than `max_buffered_bytes` of earlier messages wait already, or if the message is too
        large for a frame, the link closes and this raises too.
        """

    async def receive(self) -> Message:
        """The next message. Raises LinkClosed.

        After `close` it raises at once; if the peer has ended, after its last message.
        """

    def close(self) -> None:
        """End the link once what is buffered has gone out, or after 5 s. May be called twice."""

    def cut(self) -> None:
        """End the link at once, on whatever thread, for a loop that runs no more."""


def send_if_open(link: Link | None, message: Message) -> None:
    """Send unless the peer is gone; its reader reports that."""
    if link is None or link.is_closed:
        return
    try:
        link.send(message)
    except LinkClosed:
        logger.warning(
            "the link to %s is closed: it does not read, or was to be sent too much", link.hello
        )


class BlockingLink(Protocol):
    """The end of a link that threads use: one that receives, any number that send or close."""

    @property
    def hello(self) -> Hello:
        """Who the peer is."""

    def send(self, message: Message) -> None:
        """Send a message, waiting while the peer does not read. Thread-safe. Raises LinkClosed.

        A message that is too large for a frame closes the link.
        """

    def receive(self) -> Message:
        """Wait for the next message. Raises LinkClosed as `Link.receive` does."""

    def has_message(self) -> bool:
        """Whether `receive` would not wait, as something has come or the link is closed.

        For the thread that receives.
        """

    def wait_message_or(self, descriptor: int) -> bool:
        """Wait until `receive` would not wait, or there is something to read at a descriptor.

        Returns whether `receive` would not wait. For the thread that receives.
        """

    def wait_ended(self) -> None:
        """Return once an end has closed, though messages may be left to receive. Thread-safe."""

    def close(self) -> None:
        """End the link and wake those in `send` or `receive`. Thread-safe; may be called twice."""


def send_unless_closed(link: BlockingLink, message: Message) -> None:
    """Send, unless the link is gone, which the thread that receives notices by itself."""
    try:
        link.send(message)
    except LinkClosed as closed:
        logger.debug("not sent: %s", closed)
