"""Calls of Llama 3: an answer that is JSON, perhaps behind a tag, and more calls behind ;."""

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import json_call
from raydix.runtime.api.tool_formats.structure import CallStructure, in_sequence
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_TAG = "<|python_tag|>"


def _read(text: Incoming, tools: Tools) -> Reading[None]:
    yield from _calls(text, tools)
    while (yield from text.content_until((_TAG,))):
        yield from _calls(text, tools)


def _calls(text: Incoming, tools: Tools) -> Reading[None]:
    is_call = yield from attempt(text, _call(text, tools))
    while is_call and (yield from text.sees(";")):
        is_call = yield from attempt(text, _next(text, tools))


def _call(text: Incoming, tools: Tools) -> Reading[bool]:
    yield from text.skip_blanks()
    yield from text.takes(_TAG)
    yield from text.skip_blanks()
    # An answer may be JSON that is no call.
    return (yield from json_call(text, tools))


def _next(text: Incoming, tools: Tools) -> Reading[bool]:
    text.take(1)
    return (yield from _call(text, tools))


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=lambda name: f'{{"name": "{name}", "parameters": ',
        end="}",
        between="; ",
        free=in_sequence(
            {"type": "regex", "pattern": "[^{<\\s]"}, {"type": "any_text", "excludes": [_TAG]}
        ),
    )


# Not all of their templates have the tag.
LLAMA = ToolFormat(
    name=ToolFormatName.LLAMA,
    template_mark="Environment: ipython",
    read=_read,
    structure=_structure,
)
