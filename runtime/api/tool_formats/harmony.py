"""Answers of gpt-oss (OpenAI's harmony): messages on channels, each behind a head of its own."""

import re

from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    Content,
    Reading,
    Reasoning,
    ReasoningBegun,
    ReasoningEnded,
)
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import object_call
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_START, CHANNEL, _MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_CALL, _RETURN = "<|call|>", "<|return|>"
_HEADS = (_START, CHANNEL, " to=")
"""A head begins so; of the first one the prompt may have the beginning."""
_ENDS = (END, _CALL, _RETURN, _START)
_RECIPIENT = re.compile(r"to=(?:functions\.)?(?P<name>[^\s<]+)")
ANALYSIS = f"{CHANNEL}analysis"
ANALYSIS_MESSAGE = (f"{ANALYSIS}{_MESSAGE}", f"{END}{_START}assistant")
"""What is around reasoning that another message follows."""
FINAL = (f"{CHANNEL}final{_MESSAGE}", _RETURN)
"""What is around an answer."""


def read_messages(text: Incoming, *, takes_calls: bool) -> Reading[None]:
    """Read a whole answer. Without tools what is sent to one is content.

    Messages of a kind are told as lines of one text. What has no head goes on with the prompt's
    last message.
    """
    has_content = has_reasoning = False
    while not (yield from text.is_over()):
        head = yield from _head(text)
        recipient = _RECIPIENT.search(head)
        if recipient is not None and takes_calls:
            yield from attempt(text, _call(text, recipient["name"]))
        elif recipient is None and ANALYSIS in head:
            if has_reasoning and not (yield from text.is_over()):
                yield Reasoning("\n")
            has_reasoning = True
            yield from _analysis(text)
        else:
            if has_content and head and not (yield from text.is_over()):
                yield Content("\n")
            has_content = True
            yield from text.content_until((*_ENDS, CHANNEL))
            yield from _end(text)


def _head(text: Incoming) -> Reading[str]:
    """The head of the message that begins here; empty if there is none."""
    for begin in _HEADS:
        if (yield from text.takes(begin)):
            break
    else:
        return ""
    rest = yield from text.until(_MESSAGE, *_ENDS)
    yield from text.takes(_MESSAGE)
    return begin + (rest or "")


def _analysis(text: Incoming) -> Reading[None]:
    yield ReasoningBegun()
    yield from text.reasoning_until(_ENDS)
    yield from _end(text)
    yield ReasoningEnded()


def _call(text: Incoming, name: str) -> Reading[bool]:
    yield from text.skip_blanks()
    if (yield from _end(text)) or (yield from text.is_over()):
        yield CallBegun(name)
        yield Arguments("{}")
        return True
    if not (yield from object_call(text, name)):
        return False
    yield from text.skip_blanks()
    return (yield from _end(text)) or (yield from text.is_over())


def _end(text: Incoming) -> Reading[bool]:
    """Read the end of a message, if it comes next; the start of another one ends it, too."""
    for end in (END, _CALL, _RETURN):
        if (yield from text.takes(end)):
            return True
    return (yield from text.sees(_START))


def _read(text: Incoming, _: Tools) -> Reading[None]:
    yield from read_messages(text, takes_calls=True)


def _structure(_: str) -> CallStructure:
    # The mark ends the turn, and so does a call.
    return CallStructure(
        begin=lambda name: f"{CHANNEL}commentary to=functions.{name} <|constrain|>json{_MESSAGE}",
        end=_CALL,
        takes_several=False,
        free={
            "type": "tag",
            "begin": FINAL[0],
            "content": {"type": "any_text", "excludes": [FINAL[1]]},
            "end": FINAL[1],
        },
    )


HARMONY = ToolFormat(
    name=ToolFormatName.HARMONY,
    template_mark=CHANNEL,
    read=_read,
    structure=_structure,
    reads_reasoning=True,
)
