"""What the schema of one argument says of its values, as far as it tells a string from others."""

from collections.abc import Callable, Mapping
from typing import Any

from raydix.runtime.model.grammars.schema_merging import BRANCHES, Merger
from raydix.runtime.model.grammars.schema_strings import NotEnforced
from raydix.runtime.model.grammars.schema_types import constants, is_same, kinds_by_keywords

_MAX_DEPTH = 32
_MAX_SCHEMAS = 256
"""The most schemas that one question is asked of: what lies beyond may be anything."""
_Test = Callable[[Mapping[str, Any]], bool]


class ArgumentSchema:
    """The schema of an argument of a tool: shallow, as what is within a value tells no types."""

    def __init__(self, root: Mapping[str, Any], name: str) -> None:
        """`root`: of all arguments of the tool, which references lead into."""
        self._merger = Merger(root)
        properties = root.get("properties")
        self._schema = properties.get(name) if isinstance(properties, Mapping) else None

    def own(self) -> Mapping[str, Any]:
        """The keywords of the schema itself."""
        return self._schema if isinstance(self._schema, Mapping) else {}

    def says_nothing(self) -> bool:
        """Whether any value will do."""
        return self._holds(lambda own: _types(own) is None and constants(own) is None)

    def takes_strings(self) -> bool:
        """Whether some string will do."""
        return self._holds(_takes_strings)

    def takes(self, value: Any) -> bool:
        """Whether a value will do, by its type and what values are named."""
        return self._holds(lambda own: _takes(own, value))

    def _holds(self, test: _Test) -> bool:
        return _Asking(self._merger, test).holds(self._schema, 0)


class _Asking:
    """Owns: of how many schemas a question was asked."""

    def __init__(self, merger: Merger, test: _Test) -> None:
        self._merger = merger
        self._test = test
        self._num_asked = 0

    def holds(self, schema: Any, depth: int) -> bool:
        """Whether a schema passes, by itself and by one or all of what is under each branch."""
        self._num_asked += 1
        if depth > _MAX_DEPTH or self._num_asked > _MAX_SCHEMAS:
            return True
        if not isinstance(schema, Mapping):
            return schema is not False
        return self._test(schema) and all(
            self._branch_holds(name, schema[name], depth + 1) for name in BRANCHES if name in schema
        )

    def _branch_holds(self, name: str, given: Any, depth: int) -> bool:
        if name == "$ref":
            try:
                return self.holds(self._merger.target(given, ""), depth)
            except NotEnforced:
                # There is none, which is told where schemas are enforced.
                return True
        if not isinstance(given, list):
            return True
        holding = (self.holds(each, depth) for each in given)
        return all(holding) if name == "allOf" else any(holding)


def _types(own: Mapping[str, Any]) -> list[Any] | None:
    """The types that a schema allows, as where it is enforced; None: all."""
    given = own.get("type")
    if given is not None:
        return given if isinstance(given, list) else [given]
    if constants(own) is not None:
        return None
    return kinds_by_keywords(own) or None


def _takes_strings(own: Mapping[str, Any]) -> bool:
    kinds, values = _types(own), constants(own)
    is_named = values is None or any(isinstance(each, str) for each in values)
    return is_named and (kinds is None or "string" in kinds)


def _takes(own: Mapping[str, Any], value: Any) -> bool:
    kinds, values = _types(own), constants(own)
    is_named = values is None or any(is_same(each, value) for each in values)
    return is_named and (kinds is None or any(each in kinds for each in _types_of(value)))


def _types_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("integer", "number") if value.is_integer() else ("number",)
        case str():
            return ("string",)
        case list():
            return ("array",)
        case _:
            return ("object",)
