"""What a format of tool calls is, and the attempt to read one call."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raydix.runtime.api.tool_formats.events import (
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Reading,
)
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.structure import CallStructure
from raydix.runtime.config.policies import ToolFormatName

Tools = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's arguments, by the tool's name."""


def random_call_id() -> str:
    """An id such as OpenAI's."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family of models writes calls."""

    name: ToolFormatName
    template_mark: str
    """A text that the chat templates of these models have, and none of those behind it in the
    table."""
    read: Callable[[Incoming, Tools], Reading[None]]
    """Reads a whole answer."""
    structure: Callable[[str], CallStructure]
    """How calls are enforced, given the chat template, as some families write them in two ways."""
    gap: str = ""
    """What templates write between content and the first call."""
    reads_reasoning: bool = False
    """Whether it reads reasoning, too, which may come between calls."""
    new_call_id: Callable[[], str] = random_call_id
    """Draws an id for a call that the model gave none."""


def attempt(text: Incoming, call: Reading[bool]) -> Reading[bool]:
    """Read one call and its end; what turns out to be none is content. Returns whether it was one.

    A call that had begun before that is told as broken.
    """
    text.keep()
    has_begun = False
    while True:
        try:
            event = next(call)
        except StopIteration as ended:
            is_whole = bool(ended.value)
            break
        has_begun |= isinstance(event, CallBegun)
        yield event

    written = text.kept()
    if is_whole:
        yield CallEnded()
    elif has_begun:
        yield CallBroken(written)
    elif written:
        yield Content(written)
    return is_whole
