"""Calls of GLM-4.5 to 5: a name, then an element for each argument's key and value."""

from raydix.runtime.api.tool_formats.events import CallBegun, Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.raw_arguments import RawArguments
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


def _read(text: Incoming, tools: Tools) -> Reading[None]:
    while (yield from text.content_until((_BEGIN,))):
        yield from attempt(text, _call(text, tools))


def _call(text: Incoming, tools: Tools) -> Reading[bool]:
    text.take(len(_BEGIN))
    written = yield from text.until(_KEY, _END)
    name = "" if written is None else written.strip()
    if not name:
        return False
    yield CallBegun(name)

    arguments = RawArguments(tools.get(name, {}))
    while not (yield from text.takes(_END)):
        if not (yield from text.takes(_KEY)):
            return False
        key = yield from text.until(_KEY_END, _END)
        if key is None or not (yield from text.takes(_KEY_END)):
            return False
        yield from text.skip_blanks()
        if not (yield from text.takes(_VALUE)):
            return False
        if not (yield from arguments.member(text, key.strip(), _VALUE_END)):
            return False
        yield from text.skip_blanks()
    yield arguments.closing()
    return True


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=lambda name: f"{_BEGIN}{name}\n", end=_END, style="glm_xml", trigger=_BEGIN
    )


GLM = ToolFormat(
    name=ToolFormatName.GLM, template_mark=_KEY, read=_read, structure=_structure, gap="\n"
)
