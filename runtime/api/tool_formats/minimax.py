"""Calls of MiniMax-M2: elements that invoke a function, in one block."""

from raydix.runtime.api.tool_formats.events import CallBegun, Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.raw_arguments import RawArguments
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_BLOCK, _BLOCK_END = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _INVOKE_END = '<invoke name="', "</invoke>"
_PARAMETER, _PARAMETER_END = '<parameter name="', "</parameter>"
_NAME_END = '">'


def _read(text: Incoming, tools: Tools) -> Reading[None]:
    while (yield from text.content_until((_BLOCK,))):
        is_call = yield from attempt(text, _call(text, tools))
        while is_call and (yield from text.sees(_INVOKE)):
            is_call = yield from attempt(text, _call(text, tools))


def _call(text: Incoming, tools: Tools) -> Reading[bool]:
    yield from text.takes(_BLOCK)
    yield from text.skip_blanks()
    if not (yield from text.takes(_INVOKE)):
        return False
    name = yield from text.until(_NAME_END, _BLOCK_END)
    if not name or not (yield from text.takes(_NAME_END)):
        return False
    yield CallBegun(name)

    arguments = RawArguments(tools.get(name, {}))
    while True:
        yield from text.skip_blanks()
        if not (yield from text.takes(_PARAMETER)):
            break
        key = yield from text.until(_NAME_END, _BLOCK_END)
        if not key or not (yield from text.takes(_NAME_END)):
            return False
        if not (yield from arguments.member(text, key, _PARAMETER_END)):
            return False
    if not (yield from text.takes(_INVOKE_END)):
        return False
    yield arguments.closing()
    yield from text.skip_blanks()
    yield from text.takes(_BLOCK_END)
    return True


def _structure(_: str) -> CallStructure:
    return CallStructure(
        begin=lambda name: f"{_INVOKE}{name}{_NAME_END}\n",
        end=f"{_INVOKE_END}\n",
        style="minimax_xml",
        section=(f"{_BLOCK}\n", _BLOCK_END),
        between="",
        trigger=_BLOCK,
    )


MINIMAX = ToolFormat(
    name=ToolFormatName.MINIMAX, template_mark=_BLOCK, read=_read, structure=_structure, gap="\n"
)
