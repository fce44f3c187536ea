"""Where in a schema or structural tag its compiler finds a fault: parts are tried by themselves.

The library says what is wrong, and seldom where. A fault of a part is one of the whole.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.model.grammars.schema_merging import Merger
from raydix.runtime.model.grammars.schema_strings import NotEnforced

Part = tuple[str, Any]
"""A place, as a JSON pointer, and what stands there."""
_MAX_PARTS = 256
"""The most parts that are tried."""
_MAX_S = 0.25
"""The time of a processor after which the place that was found so far has to do."""
_NAMED = ("properties", "patternProperties")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "contains")
_IN_FORMATS = ("content", "format", "elements", "tags")


def locate(
    whole: Part, inner: Callable[[Part], Iterator[Part]], fails: Callable[[Part], bool]
) -> Part:
    """The smallest part that fails by itself; `whole` does.

    inner: the parts right within one.
    """
    stop_s = time.process_time() + _MAX_S
    found, seen = whole, {whole[0]}
    is_smallest = False
    while not is_smallest:
        is_smallest = True
        for part in inner(found):
            if len(seen) > _MAX_PARTS or time.process_time() > stop_s:
                break
            # Schemas may refer to themselves.
            if part[0] in seen:
                continue
            seen.add(part[0])
            if fails(part):
                found, is_smallest = part, False
                break
    return found


def schemas_in(root: Any) -> Callable[[Part], Iterator[Part]]:
    """What tells the schemas right within one of a document, with those that it refers to."""
    merger = Merger(root)

    def inner(part: Part) -> Iterator[Part]:
        place, schema = part
        if not isinstance(schema, dict):
            return
        for name in (*_NAMED, *_LISTED):
            for key, each in _members(schema.get(name)):
                yield f"{place}/{name}/{key}", each
        for name in _SINGLE:
            if name in schema:
                yield f"{place}/{name}", schema[name]
        if "$ref" in schema:
            pointer = schema["$ref"]
            # What stands where it says nothing was not read.
            with contextlib.suppress(NotEnforced):
                target = merger.target(pointer, place)
                yield pointer.removeprefix("#"), target

    return inner


def _members(given: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(given, dict):
        return given.items()
    return enumerate(given) if isinstance(given, list) else ()


def formats_in(part: Part) -> Iterator[Part]:
    """The formats right within one of a structural tag."""
    place, given = part
    if not isinstance(given, dict):
        return
    for name in _IN_FORMATS:
        inner = given.get(name)
        if isinstance(inner, dict):
            yield f"{place}/{name}", inner
            continue
        for index, each in _members(inner):
            yield f"{place}/{name}/{index}", each


def is_refused(convert: Callable[[], Any]) -> bool:
    """Whether the library refuses to convert something; what we would refuse is another fault."""
    try:
        convert()
    except (BadRequest, RecursionError, MemoryError):
        return False
    except (RuntimeError, ValueError, TypeError):
        return True
    return False
