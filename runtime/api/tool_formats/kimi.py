"""Calls of Kimi K2: a section of calls, each with an id that its template needs back."""

import re

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import object_call
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")


def _read(text: Incoming, _: Tools) -> Reading[None]:
    while (yield from text.content_until((_SECTION, _CALL))):
        yield from attempt(text, _call(text))


def _call(text: Incoming) -> Reading[bool]:
    yield from text.takes(_SECTION)
    yield from text.skip_blanks()
    if not (yield from text.takes(_CALL)):
        return False
    written = yield from text.until(_ARGUMENTS, _CALL_END)
    found = None if written is None else _ID.fullmatch(written.strip())
    if found is None or not (yield from text.takes(_ARGUMENTS)):
        return False
    yield from text.skip_blanks()
    if not (yield from object_call(text, found["name"], found[0])):
        return False

    yield from text.skip_blanks()
    if not (yield from text.takes(_CALL_END)):
        return (yield from text.is_over())
    yield from text.skip_blanks()
    yield from text.takes(_SECTION_END)
    return True


KIMI = ToolFormat(name=ToolFormatName.KIMI, template_mark=_SECTION, read=_read)
