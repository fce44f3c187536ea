"""The link to a node from which pages are pulled, as HostMemory's shell sees it: a `Link`."""

from raydix.runtime.actors.links.link import Link
from raydix.runtime.actors.pulls.arriving import ArrivingPages
from raydix.runtime.actors.pulls.judging import PeerJudge
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello
from raydix.runtime.messages.host import AskExists, CancelBatch, ObjectsDone, ReadObjects
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import PullPages, TellKeys


class PeerLink:
    """Owns: which questions and pulls went over a link. A `Link` that takes a storage actor's
    orders: to a peer a read is a pull, whose pages come over the streams beside it.
    """

    def __init__(self, link: Link, arriving: ArrivingPages, judge: PeerJudge) -> None:
        self._link = link
        self._arriving = arriving
        self._judge = judge

    @property
    def hello(self) -> Hello:
        """The peer, as it introduced itself."""
        return self._link.hello

    @property
    def buffered_bytes(self) -> int:
        """The bytes that were sent and that the transport has not taken over yet."""
        return self._link.buffered_bytes

    @property
    def is_closed(self) -> bool:
        """Whether `send` would raise."""
        return self._link.is_closed

    def send(self, message: Message) -> None:
        """Ask for what the core orders. Raises LinkClosed."""
        match message:
            case ReadObjects():
                self._arriving.ask(message)
                message = PullPages(
                    batch_id=message.batch_id, keys=message.keys, group=message.group
                )
            case AskExists():
                self._judge.ask(message)
            case CancelBatch() | TellKeys():
                pass
            case _:
                raise AssertionError(f"{message} is nothing to ask of another node")
        self._link.send(message)

    async def receive(self) -> ObjectsDone | MirrorUpdate:
        """Wait for what the peer says. Raises LinkClosed, or PeerMisbehaves."""
        return self._judge.check(await self._link.receive())

    def close(self) -> None:
        """End the link; its streams end with it."""
        self._link.close()

    def cut(self) -> None:
        """End the link at once."""
        self._link.cut()
