"""Calls of DeepSeek V3, R1 and V3.1: a section of calls; those of V3 are in fences of Markdown."""

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import object_call
from raydix.runtime.api.tool_formats.sections import SectionMarks, section_reader
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.config.policies import ToolFormatName

_MARKS = SectionMarks(
    section="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
)
_BETWEEN = "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"


def _call(text: Incoming) -> Reading[bool]:
    head = yield from text.until(_BETWEEN, _MARKS.call_end)
    if head is None or not (yield from text.takes(_BETWEEN)):
        return False
    yield from text.skip_blanks()
    if (yield from text.sees("{")):
        return (yield from object_call(text, head.strip()))
    return (yield from _fenced(text))


def _fenced(text: Incoming) -> Reading[bool]:
    """The name, and arguments in a fence, as V3 has them behind the word `function`."""
    name = yield from text.until("\n", _MARKS.call_end)
    if name is None:
        return False
    yield from text.skip_blanks()
    if not (yield from text.takes(_FENCE)):
        return False
    yield from text.skip_blanks()
    if not (yield from object_call(text, name.strip())):
        return False
    yield from text.skip_blanks()
    return (yield from text.takes(_FENCE_END)) or (yield from text.is_over())


def _structure(template: str) -> CallStructure:
    if _FENCE in template:
        return CallStructure(
            begin=lambda name: f"{_MARKS.call}function{_BETWEEN}{name}\n{_FENCE}\n",
            end=f"\n{_FENCE_END}{_MARKS.call_end}",
            section=(_MARKS.section, _MARKS.section_end),
            trigger=_MARKS.section,
        )
    return CallStructure(
        begin=lambda name: f"{_MARKS.call}{name}{_BETWEEN}",
        end=_MARKS.call_end,
        section=(_MARKS.section, _MARKS.section_end),
        between="",
        trigger=_MARKS.section,
    )


DEEPSEEK = ToolFormat(
    name=ToolFormatName.DEEPSEEK,
    template_mark=_BETWEEN,
    read=section_reader(_MARKS, _call),
    structure=_structure,
)
