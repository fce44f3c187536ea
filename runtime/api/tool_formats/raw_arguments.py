"""Arguments that are no JSON: a string stands as it is, and the schema says what is one."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from raydix.runtime.api.tool_formats.argument_schema import ArgumentSchema
from raydix.runtime.api.tool_formats.events import Arguments, Content, Reading
from raydix.runtime.api.tool_formats.incoming import Incoming

_BOUND = frozenset({"enum", "const", "pattern", "format", "minLength", "maxLength"})
"""Keywords by which a string is no free text: the blanks around it are not part of it."""


class RawArguments:
    """Owns: how many arguments of one call were told, as members of a JSON object."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """`schema`: of the tool's arguments."""
        self._schema = schema
        self._num_told = 0

    def member(self, text: Incoming, name: str, *ends: str) -> Reading[bool]:
        """Tell the argument whose value comes next, and read the end behind it. False: none came.

        A string is told as it comes.
        """
        yield Arguments(
            f"{', ' if self._num_told else '{'}{json.dumps(name, ensure_ascii=False)}: "
        )
        self._num_told += 1
        schema = ArgumentSchema(self._schema, name)
        own = schema.own()
        if own.get("type") == "string" and not _BOUND & own.keys():
            if not (yield from _told_string(text, ends)):
                return False
        else:
            written = yield from text.until(*ends)
            if written is None:
                return False
            yield Arguments(_json_of(written, schema))
        for each in ends:
            if (yield from text.takes(each)):
                break
        return True

    def closing(self) -> Arguments:
        """What ends the object."""
        return Arguments("}" if self._num_told else "{}")


def _told_string(text: Incoming, ends: tuple[str, ...]) -> Reading[bool]:
    """Tell what comes before one of the ends as a JSON string."""
    yield Arguments('"')
    reading = text.content_until(ends)
    while True:
        try:
            event = next(reading)
        except StopIteration as ended:
            if not ended.value:
                return False
            break
        if isinstance(event, Content):
            yield Arguments(json.dumps(event.text, ensure_ascii=False)[1:-1])
        else:
            yield None
    yield Arguments('"')
    return True


def _json_of(written: str, schema: ArgumentSchema) -> str:
    """The JSON that a value is, or else the string.

    Where a string may come it stands raw, so that JSON is one, too, unless the schema takes that.
    """
    try:
        value = from_json(written, allow_inf_nan=False)
    except ValueError:
        return _string_of(written)
    if not schema.takes_strings() or schema.says_nothing():
        return written.strip()
    # Quotes are of the string, unless it is one of some values without them.
    is_quoted = isinstance(value, str) and schema.takes(written.strip())
    return _string_of(written) if is_quoted or not schema.takes(value) else written.strip()


def _string_of(written: str) -> str:
    return json.dumps(written.strip(), ensure_ascii=False)
