"""Calls of Mistral: a name and its arguments, or with older tokenizers a JSON list of calls."""

import re
import uuid

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_calls import json_call, object_call
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools, attempt
from raydix.runtime.config.policies import ToolFormatName

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w.-]+")


def _read(text: Incoming, _: Tools) -> Reading[None]:
    while (yield from text.content_until((_BEGIN,))):
        is_call = yield from attempt(text, _first(text))
        while is_call and (yield from text.sees(",")):
            is_call = yield from attempt(text, _listed(text))


def _first(text: Incoming) -> Reading[bool]:
    text.take(len(_BEGIN))
    yield from text.skip_blanks()
    if (yield from text.sees("[")):
        return (yield from _listed(text))

    name = yield from text.until(_ID, _ARGUMENTS, _BEGIN)
    if name is None or _NAME.fullmatch(name.strip()) is None:
        return False
    call_id = None
    if (yield from text.takes(_ID)):
        call_id = yield from text.until(_ARGUMENTS, _BEGIN)
    if not (yield from text.takes(_ARGUMENTS)):
        return False
    yield from text.skip_blanks()
    return (yield from object_call(text, name.strip(), call_id))


def _listed(text: Incoming) -> Reading[bool]:
    """A call of a list, behind its bracket or a comma; the last one with the list's end."""
    text.take(1)
    yield from text.skip_blanks()
    if not (yield from json_call(text)):
        return False
    yield from text.skip_blanks()
    if (yield from text.sees(",")) or (yield from text.takes("]")):
        return True
    return (yield from text.is_over())


def _new_call_id() -> str:
    """Draw nine letters and digits, which these templates demand."""
    return uuid.uuid4().hex[:9]


def _structure(template: str) -> CallStructure:
    if _ARGUMENTS in template:
        return CallStructure(
            begin=lambda name: f"{_BEGIN}{name}{_ARGUMENTS}", end="", between="", trigger=_BEGIN
        )
    return CallStructure(
        begin=lambda name: f'{{"name": "{name}", "arguments": ',
        end="}",
        section=(f"{_BEGIN}[", "]"),
        between=", ",
        trigger=_BEGIN,
    )


MISTRAL = ToolFormat(
    name=ToolFormatName.MISTRAL,
    template_mark=_BEGIN,
    read=_read,
    structure=_structure,
    new_call_id=_new_call_id,
)
