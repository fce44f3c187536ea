"""Calls of Qwen3-Coder and Qwen3.5: an element for the function and each of its parameters."""

from raydix.runtime.api.tool_formats.events import CallBegun, Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.raw_arguments import RawArguments
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_BEGIN, _END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read(text: Incoming, tools: Tools) -> Reading[None]:
    while (yield from text.content_until((_BEGIN,))):
        yield from attempt(text, _call(text, tools))


def _call(text: Incoming, tools: Tools) -> Reading[bool]:
    text.take(len(_BEGIN))
    yield from text.skip_blanks()
    if not (yield from text.takes(_FUNCTION)):
        return False
    name = yield from text.until(">", _END)
    if not name or not (yield from text.takes(">")):
        return False
    yield CallBegun(name)

    arguments = RawArguments(tools.get(name, {}))
    while True:
        yield from text.skip_blanks()
        if not (yield from text.takes(_PARAMETER)):
            break
        key = yield from text.until(">", _END)
        if not key or not (yield from text.takes(">")):
            return False
        # An end of a line on either side is not of the value.
        yield from text.takes("\n")
        ends = (f"\n{_PARAMETER_END}", _PARAMETER_END)
        if not (yield from arguments.member(text, key, *ends)):
            return False
    if not (yield from text.takes(_FUNCTION_END)):
        return False
    yield arguments.closing()
    yield from text.skip_blanks()
    return (yield from text.takes(_END)) or (yield from text.is_over())


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=lambda name: f"{_BEGIN}\n{_FUNCTION}{name}>\n",
        end=f"\n{_FUNCTION_END}\n{_END}",
        style="qwen_xml",
        trigger=_BEGIN,
    )


QWEN_CODER = ToolFormat(
    name=ToolFormatName.QWEN_CODER,
    template_mark=_FUNCTION,
    read=_read,
    structure=_structure,
    gap="\n\n",
)
