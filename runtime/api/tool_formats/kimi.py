"""Calls of Kimi K2: a section of calls, each with an id that its template needs back."""

import re

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import object_call
from raydix.runtime.api.tool_formats.sections import SectionMarks, section_reader
from raydix.runtime.api.tool_formats.structure import CallStructure, Part, in_sequence
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.config.policies import ToolFormatName

KIMI_MARKS = SectionMarks(
    section="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
)
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>.+):\d+")


def _call(text: Incoming) -> Reading[bool]:
    written = yield from text.until(_ARGUMENTS, KIMI_MARKS.call_end)
    found = None if written is None else _ID.fullmatch(written.strip())
    if found is None or not (yield from text.takes(_ARGUMENTS)):
        return False
    yield from text.skip_blanks()
    return (yield from object_call(text, found["name"], found[0]))


def _begin(name: str) -> Part:
    """Its id has a number, which the model counts."""
    number = in_sequence(
        {"type": "regex", "pattern": "[0-9]{1,2}"},
        {"type": "const_string", "value": _ARGUMENTS},
    )
    return {"type": "tag", "begin": f"{KIMI_MARKS.call}functions.{name}:", "content": number}


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=_begin,
        end=KIMI_MARKS.call_end,
        section=(KIMI_MARKS.section, KIMI_MARKS.section_end),
        between="",
        trigger=KIMI_MARKS.section,
    )


KIMI = ToolFormat(
    name=ToolFormatName.KIMI,
    template_mark=KIMI_MARKS.section,
    read=section_reader(KIMI_MARKS, _call),
    structure=_structure,
)
