"""What pieces of an answer say, for comparisons."""

import itertools
from collections.abc import Iterable

from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import Arguments, Content, Event, Reasoning


def parsed(answer_format: AnswerFormat, pieces: Iterable[str]) -> list[Event]:
    """What the pieces say, neighbouring texts joined."""
    parser = AnswerParser(answer_format)
    events = list(itertools.chain.from_iterable(parser.push(each) for each in pieces))
    joined: list[Event] = []
    for event in [*events, *parser.finish()]:
        match joined[-1:], event:
            case (
                ([Content() as last], Content())
                | ([Arguments() as last], Arguments())
                | ([Reasoning() as last], Reasoning())
            ):
                joined[-1] = type(last)(last.text + event.text)
            case _:
                joined.append(event)
    return joined
