"""Calls of DeepSeek V3, R1 and V3.1: a section of calls; those of V3 are in fences of Markdown."""

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import object_call
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_BETWEEN = "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"


def _read(text: Incoming, _: Tools) -> Reading[None]:
    while (yield from text.content_until((_SECTION, _CALL))):
        yield from attempt(text, _call(text))


def _call(text: Incoming) -> Reading[bool]:
    yield from text.takes(_SECTION)
    yield from text.skip_blanks()
    if not (yield from text.takes(_CALL)):
        return False
    head = yield from text.until(_BETWEEN, _CALL_END)
    if head is None or not (yield from text.takes(_BETWEEN)):
        return False
    yield from text.skip_blanks()
    is_whole = yield from (
        object_call(text, head.strip()) if (yield from text.sees("{")) else _fenced(text)
    )
    if not is_whole:
        return False

    yield from text.skip_blanks()
    if not (yield from text.takes(_CALL_END)):
        return (yield from text.is_over())
    yield from text.skip_blanks()
    yield from text.takes(_SECTION_END)
    return True


def _fenced(text: Incoming) -> Reading[bool]:
    """The name, and arguments in a fence, as V3 has them behind the word `function`."""
    name = yield from text.until("\n", _CALL_END)
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


DEEPSEEK = ToolFormat(name=ToolFormatName.DEEPSEEK, template_mark=_BETWEEN, read=_read)
