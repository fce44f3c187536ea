"""Calls that stand in a section: its marks are around all calls, and others around each."""

from collections.abc import Callable
from dataclasses import dataclass

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.tool_format import Tools, attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionMarks:
    """The marks of a section, and those of a call within it."""

    section: str
    section_end: str
    call: str
    call_end: str


def section_reader(
    marks: SectionMarks, read_call: Callable[[Incoming], Reading[bool]]
) -> Callable[[Incoming, Tools], Reading[None]]:
    """What reads a whole answer; `read_call` reads what is between a call's marks.

    Models leave out marks of the section, and the last mark of all.
    """

    def read(text: Incoming, _: Tools) -> Reading[None]:
        while (yield from text.content_until((marks.section, marks.call))):
            yield from attempt(text, marked_call(text))

    def marked_call(text: Incoming) -> Reading[bool]:
        yield from text.takes(marks.section)
        yield from text.skip_blanks()
        if not (yield from text.takes(marks.call)):
            return False
        if not (yield from read_call(text)):
            return False

        yield from text.skip_blanks()
        if not (yield from text.takes(marks.call_end)):
            return (yield from text.is_over())
        yield from text.skip_blanks()
        yield from text.takes(marks.section_end)
        return True

    return read
