"""One answer's text as reasoning, content and calls, in pieces of any size."""

from collections.abc import Iterator

from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reading,
    Reasoning,
    ReasoningBegun,
    ReasoningEdge,
    ReasoningEnded,
)
from raydix.runtime.api.tool_formats.incoming import BLANKS, Incoming

_READ_CHARS = 4 << 10
"""The most text that comes at once: what comes is searched to its end for each mark, again behind
each that was found.
"""


class AnswerParser:
    """Owns: how far one answer was read.

    The blanks before a call are not told if nothing was said before them, or another call was; of
    others the format's gap is left out, which templates put there.
    """

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._gap = answer_format.gap
        self._text = Incoming()
        self._reading: Reading[None] = answer_format.read(self._text)
        self._num_come = 0
        """The characters of the pieces before the latest."""
        self._edges: list[int] = []
        self._is_done = False
        self._blanks = ""
        """Held back: a call may follow."""
        self._has_content = False
        self._has_calls = False

    def push(self, text: str) -> list[Event]:
        """Take the next piece; returns what is certain by now."""
        self._edges = []
        events: list[Event] = []
        for start in range(0, max(1, len(text)), _READ_CHARS):
            self._text.add(text[start : start + _READ_CHARS])
            events += self._told()
        self._num_come += len(text)
        return list(_joined(events))

    @property
    def edges(self) -> list[int]:
        """The places in the latest piece where reasoning begins and ends, in turn.

        One that is before the piece, but has become certain with it, stands at its beginning.
        """
        return self._edges

    def finish(self) -> list[Event]:
        """What was held back: no text follows."""
        self._text.end()
        events = list(self._told())
        if self._blanks and not self._has_calls:
            events.append(Content(self._blanks))
        self._blanks = ""
        return list(_joined(events))

    def _told(self) -> Iterator[Event]:
        for event in self._events():
            match event:
                case ReasoningBegun() | ReasoningEnded():
                    self._edges.append(max(0, self._text.num_read - self._num_come))
                case Reasoning():
                    yield event
                case Content():
                    yield from self._content(event.text)
                case CallBegun():
                    if self._has_content and not self._has_calls:
                        yield from self._content_of(self._blanks.removesuffix(self._gap))
                    self._blanks = ""
                    self._has_calls = True
                    yield event
                case CallBroken():
                    self._has_content = True
                    yield event
                case Arguments() | CallEnded():
                    yield event

    def _content(self, text: str) -> Iterator[Content]:
        text = self._blanks + text
        said = text.rstrip(BLANKS)
        self._blanks = text[len(said) :]
        yield from self._content_of(said)

    def _content_of(self, text: str) -> Iterator[Content]:
        if text:
            self._has_content = True
            yield Content(text)

    def _events(self) -> Iterator[Event | ReasoningEdge]:
        """What can be read of what has come."""
        while not self._is_done:
            try:
                event = next(self._reading)
            except StopIteration:
                self._is_done = True
                return
            if event is None:
                return
            yield event


def _joined(events: "Iterator[Event] | list[Event]") -> Iterator[Event]:
    """The same with neighbouring pieces as one."""
    last: Event | None = None
    for event in events:
        match last, event:
            case (Content(), Content()):
                last = Content(last.text + event.text)
            case (Reasoning(), Reasoning()):
                last = Reasoning(last.text + event.text)
            case (Arguments(), Arguments()):
                last = Arguments(last.text + event.text)
            case _:
                if last is not None:
                    yield last
                last = event
    if last is not None:
        yield last
