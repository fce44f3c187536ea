"""Calls of Hermes, Qwen2.5 and Qwen3: JSON between `<tool_call>` and `</tool_call>`."""

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import json_call
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _read(text: Incoming, _: Tools) -> Reading[None]:
    while (yield from text.content_until((_BEGIN,))):
        yield from attempt(text, _call(text))


def _call(text: Incoming) -> Reading[bool]:
    text.take(len(_BEGIN))
    yield from text.skip_blanks()
    if not (yield from json_call(text)):
        return False
    yield from text.skip_blanks()
    # Some models end their turn instead.
    return (yield from text.takes(_END)) or (yield from text.is_over())


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=lambda name: f'{_BEGIN}\n{{"name": "{name}", "arguments": ',
        end=f"}}\n{_END}",
        trigger=_BEGIN,
    )


HERMES = ToolFormat(
    name=ToolFormatName.HERMES, template_mark=_BEGIN, read=_read, structure=_structure, gap="\n"
)
