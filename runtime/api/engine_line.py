"""What a client has with its engines: a link to each, and what it has asked over it."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from raydix.errors import EngineDead
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    FromClient,
    PrefetchPrompt,
    RequestDelta,
    SubmitRequest,
)
from raydix.runtime.messages.routing import EngineNews, NodeReport
from raydix.runtime.routing.events import Route

_CLOSED = "The connection to the engine is closed. Connect again."


class EngineLine:
    """Owns: the link to one engine, and the askings over it whose last delta has not come."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._link: Link | None = None
        self._unanswered: set[AskingId] = set()
        self._is_stopping = False
        self._is_asleep = False

    @property
    def is_up(self) -> bool:
        """Whether there is a link."""
        return self._link is not None

    @property
    def takes_requests(self) -> bool:
        """Whether there is a link, and the engine has not said that it stops or sleeps."""
        return self.is_up and not (self._is_stopping or self._is_asleep)

    @property
    def is_stopping(self) -> bool:
        """Whether there is a link, and the engine has said that it stops."""
        return self.is_up and self._is_stopping

    @property
    def is_asleep(self) -> bool:
        """Whether the engine has said that it sleeps, or is on its way there or back."""
        return self.is_up and self._is_asleep

    @property
    def num_requests(self) -> int:
        """Askings that the engine has not ended yet."""
        return len(self._unanswered)

    def open(self, link: Link) -> None:
        """Use this link from now on, over which nothing was asked yet."""
        assert self._link is None, "there is a link"
        self._link = link
        self._is_stopping = self._is_asleep = False

    def note_stopping(self) -> None:
        """Note that the engine takes no new requests over this link."""
        self._is_stopping = True

    def note_asleep(self) -> None:
        """Note that the engine sleeps: others are asked until it says that it is awake."""
        self._is_asleep = True

    def hear(self, report: NodeReport) -> None:
        """Note whether the engine says that it sleeps."""
        self._is_asleep = report.is_asleep

    def ask(self, message: SubmitRequest | PrefetchPrompt) -> None:
        """Send what will be answered. Raises EngineDead."""
        self.send(message)
        self._unanswered.add(message.asking)

    def send(self, message: FromClient) -> None:
        """Send something. Raises EngineDead."""
        if self._link is None:
            raise EngineDead(_CLOSED)
        try:
            self._link.send(message)
        except LinkClosed as error:
            raise EngineDead(
                f"The connection to the engine is closed ({error}). Connect again."
            ) from error

    def answered(self, asking: AskingId) -> None:
        """Note that the last delta of an asking has come."""
        self._unanswered.discard(asking)

    def has(self, asking: AskingId) -> bool:
        """Whether an asking is answered over this link."""
        return asking in self._unanswered

    def lose(self) -> frozenset[AskingId]:
        """Give up the link; returns the askings that nobody will answer."""
        lost, self._unanswered = frozenset(self._unanswered), set()
        if self._link is not None:
            self._link.close()
        self._link = None
        return lost

    def cut(self) -> None:
        """Close the link from outside of its loop."""
        if self._link is not None:
            self._link.cut()
        self._link = None


class ChooseLine(Protocol):
    """Chooses which engine gets a request, by what it hears of the engines."""

    def opened(self, line: EngineLine) -> None:
        """There is a new link to an engine."""

    def lost(self, line: EngineLine) -> None:
        """The link to an engine is lost, and with it what was asked over it."""

    def hear(self, line: EngineLine, news: EngineNews) -> None:
        """An engine tells what it was asked for, over the link that there is."""

    def choose(
        self, lines: Sequence[EngineLine], message: SubmitRequest | PrefetchPrompt
    ) -> tuple[EngineLine, SubmitRequest | PrefetchPrompt]:
        """One of the lines that have a link, of which there is one at least; and what to send."""

    def joins(
        self, line: EngineLine, message: SubmitRequest | PrefetchPrompt
    ) -> SubmitRequest | PrefetchPrompt:
        """What is asked goes where something is that it belongs to; returns what to send."""

    def answered(self, asking: AskingId, request_id: RequestId, *, is_last: bool) -> None:
        """Tokens of an asking have come, or its last delta; told again, nothing happens."""

    def ended(self, asking: AskingId, request_id: RequestId) -> None:
        """An asking has ended for good, which had this request id."""

    def route_of(self, asking: AskingId) -> Route | None:
        """Why an asking goes where it goes, until it is answered; None if nothing was reckoned."""

    def predict_s(self, lines: Sequence[EngineLine], message: SubmitRequest) -> float:
        """The time to the next token at the best of these lines; 0 if nothing is known of them."""


class EngineLines:
    """Owns: the lines to the engines of one model, by the engines' names."""

    def __init__(self, choice: ChooseLine) -> None:
        self._choice = choice
        self._lines: dict[str, EngineLine] = {}

    @property
    def num_requests(self) -> int:
        """Askings that no engine has ended yet."""
        return sum(line.num_requests for line in self._lines.values())

    @property
    def up(self) -> list[EngineLine]:
        """The lines that have a link."""
        return [line for line in self._lines.values() if line.is_up]

    @property
    def taking(self) -> list[EngineLine]:
        """The lines over which requests are taken."""
        return [line for line in self._lines.values() if line.takes_requests]

    @property
    def staying(self) -> list[EngineLine]:
        """The lines whose engines have not said that they stop; some may sleep."""
        return [line for line in self.up if not line.is_stopping]

    @property
    def asleep(self) -> list[EngineLine]:
        """The lines whose engines sleep, or are on their way there or back."""
        return [line for line in self._lines.values() if line.is_asleep]

    @property
    def down(self) -> list[EngineLine]:
        """The lines whose link is lost, of those that were there when the last one was opened."""
        return [line for line in self._lines.values() if not line.is_up]

    def has_link(self, engine: str) -> bool:
        """Whether there is a link to this engine."""
        return any(line.engine == engine for line in self.up)

    def open(self, engine: str, link: Link) -> EngineLine:
        """Use a link to this engine from now on."""
        # Each whose link was lost is looked for already. Those of a service mostly never come back.
        self._lines = {line.engine: line for line in self.up}
        line = self._lines.setdefault(engine, EngineLine(engine))
        line.open(link)
        self._choice.opened(line)
        return line

    def of(self, asking: AskingId) -> EngineLine | None:
        """The line over which an asking will be answered; None: over none."""
        return next((line for line in self._lines.values() if line.has(asking)), None)

    def ask(
        self, message: SubmitRequest | PrefetchPrompt, beside: Iterable[AskingId] = ()
    ) -> SubmitRequest | PrefetchPrompt:
        """Ask an engine, that of the askings `beside` if there is one; returns what was sent.

        Raises EngineDead.
        """
        # With one that sleeps requests wait. One that is about to stop says so itself, where there
        # is no other.
        up = self.taking or self.staying or self.up
        near = [line for line in up if any(line.has(asking) for asking in beside)]
        while up:
            if near:
                line = near.pop()
                sent = self._choice.joins(line, message)
            else:
                line, sent = self._choice.choose(up, message)
            try:
                line.ask(sent)
                return sent
            except EngineDead:
                # Its link is lost, which its reader has not said yet.
                up.remove(line)
        raise EngineDead(_CLOSED)

    def tell(self, asking: AskingId, message: FromClient) -> bool:
        """Send something that concerns an asking; False if nobody will answer that."""
        line = self.of(asking)
        if line is None:
            return False
        # A closed link needs no abort: the Scheduler ends all requests of a client that is gone.
        with contextlib.suppress(EngineDead):
            line.send(message)
        return True

    def is_left(self, line: EngineLine, delta: RequestDelta) -> bool:
        """Whether an engine ends an asking that another one can go on with."""
        if delta.finished is FinishReason.HANDED_OVER:
            return True
        match None if delta.failure is None else delta.failure.kind:
            case FailureKind.SHUTTING_DOWN:
                line.note_stopping()
                return bool(self.staying)
            case FailureKind.ASLEEP if any(each is not line for each in self.taking):
                # Where there is no other, callers hear when to ask again.
                line.note_asleep()
                return True
            case _:
                return False

    def leave(self, asking: AskingId, request_id: RequestId) -> None:
        """Have an engine end an asking with which another one is to go on."""
        line = self.of(asking)
        if line is None:
            return
        with contextlib.suppress(EngineDead):
            line.send(AbortRequest(asking=asking, request_id=request_id))
        line.answered(asking)
        self._choice.answered(asking, request_id, is_last=True)

    def tell_all(self, message: FromClient) -> None:
        """Send something to every engine. Raises EngineDead if there is none."""
        if not self.up:
            raise EngineDead(_CLOSED)
        for line in self.up:
            with contextlib.suppress(EngineDead):
                line.send(message)

    def lose_all(self) -> None:
        """Give up every link."""
        for line in self._lines.values():
            line.lose()

    def cut_all(self) -> None:
        """Close every link from outside of its loop."""
        for line in self._lines.values():
            line.cut()
