"""Calls that are JSON: `{"name": "f", "arguments": {...}}`, and arguments that are an object."""

from collections.abc import Container

from pydantic_core import from_json

from raydix.runtime.api.tool_formats.events import Arguments, CallBegun, Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.json_scanner import JsonScanner

_ARGUMENTS = ("arguments", "parameters")


def is_object(text: str) -> bool:
    """Whether a text is the JSON of an object."""
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def arguments_object(text: Incoming) -> Reading[bool]:
    """Tell the JSON object that comes next as arguments. False: there is none, or a broken one."""
    if not (yield from text.sees("{")):
        return False
    return (yield from _json_value(text))


def object_call(text: Incoming, name: str, call_id: str | None = None) -> Reading[bool]:
    """Read the arguments of a call whose name has been read. False: it is none."""
    if not name or not (yield from text.sees("{")):
        return False
    yield CallBegun(name, call_id)
    return (yield from arguments_object(text))


def json_call(text: Incoming, names: Container[str] | None = None) -> Reading[bool]:
    """Read a call. Its arguments are told as they come once its name is known.

    names: of the tools, without one of which it is no call; None: it is one by any name.
    """
    name: str | None = None
    arguments: str | None = None
    is_told = False
    if not (yield from text.takes("{")):
        return False
    while True:
        yield from text.skip_blanks()
        key = yield from _string(text)
        yield from text.skip_blanks()
        if key is None or not (yield from text.takes(":")):
            return False
        yield from text.skip_blanks()

        if key in _ARGUMENTS and name is not None and (yield from text.sees("{")):
            if is_told or arguments is not None:
                return False
            is_told = True
            yield CallBegun(name)
            if not (yield from arguments_object(text)):
                return False
        elif key in _ARGUMENTS:
            arguments = _object_of((yield from _held_value(text)))
            if is_told or arguments is None:
                return False
        elif key == "name":
            if name is not None or not (name := (yield from _string(text))):
                return False
            if names is not None and name not in names:
                return False
        elif (yield from _held_value(text)) is None:
            return False

        yield from text.skip_blanks()
        if (yield from text.takes("}")):
            break
        if not (yield from text.takes(",")):
            return False

    if name is None:
        return False
    if not is_told:
        yield CallBegun(name)
        yield Arguments("{}" if arguments is None else arguments)
    return True


def _object_of(value: str | None) -> str | None:
    """The arguments of a value that is no plain object, as some models write them."""
    if value is None or value == "null":
        return None if value is None else "{}"
    if value.startswith('"'):
        value = from_json(value)
    return value if value is not None and is_object(value) else None


def _string(text: Incoming) -> Reading[str | None]:
    """The JSON string that comes next; None: there is none."""
    if not (yield from text.sees('"')):
        return None
    value = yield from _held_value(text)
    if value is None:
        return None
    try:
        string: str = from_json(value)
    except ValueError:
        # Half of a surrogate pair, which is no text.
        return None
    return string


def _held_value(text: Incoming) -> Reading[str | None]:
    """The JSON value that comes next, once it is whole; None: it is none."""
    pieces: list[str] = []
    reading = _json_value(text)
    while True:
        try:
            event = next(reading)
        except StopIteration as ended:
            return "".join(pieces) if ended.value else None
        if event is None:
            yield None
        else:
            assert isinstance(event, Arguments), "nothing else is told of a value"
            pieces.append(event.text)


def _json_value(text: Incoming) -> Reading[bool]:
    """Tell the JSON value that comes next as arguments. False: it is none."""
    scanner = JsonScanner()
    while True:
        number = scanner.read(text.rest)
        if number:
            yield Arguments(text.take(number))
        if not scanner.is_over and text.has_ended:
            scanner.end()
        if scanner.is_over:
            return not scanner.is_wrong
        yield None
