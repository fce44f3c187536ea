"""One answer's text as content and calls, in pieces of any size."""

from collections.abc import Iterator

from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reading,
)
from raydix.runtime.api.tool_formats.incoming import BLANKS, Incoming
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools


class ToolParser:
    """Owns: how far one answer was read.

    The blanks before a call are not told if nothing was said before them, or another call was; of
    others the format's gap is left out, which templates put there.
    """

    def __init__(self, tool_format: ToolFormat, tools: Tools) -> None:
        self._gap = tool_format.gap
        self._text = Incoming()
        self._reading: Reading[None] = tool_format.read(self._text, tools)
        self._is_done = False
        self._blanks = ""
        """Held back: a call may follow."""
        self._has_content = False
        self._has_calls = False

    def push(self, text: str) -> list[Event]:
        """Take the next piece; returns what is certain by now."""
        self._text.add(text)
        return list(_joined(self._told()))

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

    def _events(self) -> Iterator[Event]:
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
            case (Arguments(), Arguments()):
                last = Arguments(last.text + event.text)
            case _:
                if last is not None:
                    yield last
                last = event
    if last is not None:
        yield last
