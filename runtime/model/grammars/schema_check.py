"""JSON schemas as the compiler of grammars takes them: all that they demand, or none of them.

The compiler passes over some keywords in silence. So a schema is read here first: what would not be
enforced is refused by name and place, and what can be said in another way is. The outputs of the
schema that comes back are valid under the one that was given; they may be fewer.
"""

from collections import deque
from typing import Any

from raydix.runtime.model.grammars.schema_counts import (
    check_bounds,
    check_lengths,
    enough_required,
    multiples,
    whole,
    with_contained,
)
from raydix.runtime.model.grammars.schema_merging import BRANCHES, MAX_DEPTH, Merger, branches_of
from raydix.runtime.model.grammars.schema_strings import read_pattern, read_string, refuse
from raydix.runtime.model.grammars.schema_types import (
    ANNOTATIONS,
    OF_TYPE,
    constants,
    kinds_by_keywords,
    makes_objects,
    types,
)

_NOT_ENFORCED = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("maxContains", "unevaluatedItems", "unevaluatedProperties", "propertyNames"),
        *("$dynamicRef", "$recursiveRef", "$id", "id", "$anchor", "$dynamicAnchor", "nullable"),
        "additionalItems",
    }
)


class _Reader:
    """Owns: what has been read of one schema, with the names of those that it refers to."""

    def __init__(self, merger: Merger) -> None:
        self._merger = merger
        self._names: dict[str, str] = {}
        self._unread: deque[str] = deque()

    def read_all(self, part: Any, place: str) -> Any:
        """A whole schema of this document. What nothing refers to is left out."""
        schema = self.read(part, place, 0)
        definitions: dict[str, Any] = {}
        # One after another: what refers to what may be a longer chain than schemas may be deep.
        while self._unread:
            pointer = self._unread.popleft()
            place = pointer.removeprefix("#")
            target = self._merger.target(pointer, place)
            definitions[self._names[pointer]] = self.read(target, place, 0)
        return {**schema, "$defs": definitions} if definitions else schema

    def read(self, schema: Any, place: str, depth: int) -> Any:
        """The same schema for the compiler."""
        if depth > MAX_DEPTH:
            raise refuse(place, f"the schema is nested deeper than {MAX_DEPTH}")
        if schema is True:
            return True
        if not isinstance(schema, dict):
            raise refuse(place, f"{schema!r:.40} stands where a schema of some value is expected")

        wrong = sorted(name for name in schema if name in _NOT_ENFORCED)
        if wrong:
            raise refuse(f"{place}/{wrong[0]}", f"the keyword {wrong[0]!r} is not enforced")
        asserted = {name: each for name, each in schema.items() if name not in ANNOTATIONS}
        return self._asserted(asserted, place, depth)

    def _each(self, schemas: Any, place: str, depth: int) -> dict[str, Any]:
        if not isinstance(schemas, dict):
            raise refuse(place, f"{schemas!r:.40} stands where an object of schemas is expected")
        return {
            name: each if each is False else self.read(each, f"{place}/{name}", depth + 1)
            for name, each in schemas.items()
        }

    def _asserted(self, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        chosen = [name for name in (*BRANCHES, "enum", "const") if name in schema]
        if not chosen:
            return self._typed(schema, place, depth)
        if len(schema) == 1:
            return self._choice(chosen[0], schema, place, depth)
        # What stands together is merged first: the compiler would pass over one of them.
        return self._merged(schema, place, depth)

    def _merged(self, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        merged = self._merger.alternatives(schema, place, depth)
        return self._any_of([self.read(each, place, depth + 1) for each in merged], place)

    def _any_of(self, parts: list[Any], place: str) -> dict[str, Any]:
        if not parts:
            raise refuse(place, "no value is valid")
        if len(parts) > 1:
            return {"anyOf": parts}
        return parts[0] if isinstance(parts[0], dict) else {}

    def _choice(self, name: str, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        value, own = schema[name], f"{place}/{name}"
        match name:
            case "$ref":
                return self._reference(value, own)
            case "const":
                return {"enum": [value]}
            case "enum":
                if not isinstance(value, list) or not value:
                    raise refuse(own, "a list of values is expected")
                return {"enum": value}
            case "allOf" if len(branches_of(value, own)) > 1:
                return self._merged(schema, place, depth)
            case "oneOf":
                self._merger.check_disjoint(branches_of(value, own), own)
        return self._any_of(
            [
                self.read(each, f"{own}/{index}", depth + 1)
                for index, each in enumerate(branches_of(value, own))
                if each is not False
            ],
            own,
        )

    def _reference(self, pointer: Any, place: str) -> dict[str, Any]:
        self._merger.target(pointer, place)
        if pointer == "#":
            return {"$ref": pointer}
        # Where it lies may be merged with something else.
        if pointer not in self._names:
            self._names[pointer] = str(len(self._names))
            self._unread.append(pointer)
        return {"$ref": f"#/$defs/{self._names[pointer]}"}

    def makes_objects(self, schema: Any) -> bool:
        """Whether every value that comes of a schema which can be enforced is an object."""
        for each in self._merger.alternatives(schema, "", 0):
            values = constants(each)
            if values is None and not makes_objects(each):
                return False
            if not all(isinstance(value, dict) for value in values or ()):
                return False
        return True

    def _typed(self, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        kinds = types(schema, place)
        if kinds is None:
            # Keywords of one type say nothing of values of others: of these there are none, then.
            kinds = kinds_by_keywords(schema)
            if not kinds:
                return {}
        branches = [self._of_type(kind, schema, place, depth) for kind in dict.fromkeys(kinds)]
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _of_type(self, kind: str, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        own = {name: whole(schema[name], name) for name in OF_TYPE[kind] if name in schema}
        match kind:
            case "object":
                own = self._object(own, place, depth)
            case "array":
                own = self._array(own, place, depth)
            case "string":
                own = read_string(own, place)
            case "integer" | "number":
                return self._number(kind, own, place)
        return {"type": kind, **own}

    def _number(self, kind: str, own: dict[str, Any], place: str) -> dict[str, Any]:
        check_bounds(own, place)
        if "multipleOf" not in own:
            return {"type": kind, **own}
        schema = {"type": kind, **own}
        values = self._merger.valid(multiples(own, place), (schema,), place)
        if not values:
            raise refuse(place, "no value is valid")
        return {"enum": values}

    def _object(self, own: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        properties = self._each(own.get("properties", {}), f"{place}/properties", depth)
        required = own.get("required", [])
        if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
            raise refuse(f"{place}/required", "a list of names is expected")

        others = own.get("additionalProperties", True)
        if isinstance(others, dict):
            others = self.read(others, f"{place}/additionalProperties", depth + 1)
        patterns = own.get("patternProperties", {})
        if patterns:
            return self._patterns(own, place, depth)
        for name in required:
            if properties.get(name, others) is False:
                raise refuse(f"{place}/required", f"{name!r:.80} is required, and may not be")
            properties.setdefault(name, others)
        properties = {name: each for name, each in properties.items() if each is not False}
        required = enough_required(own, properties, required, place)
        is_closed = others is False or (properties and "additionalProperties" not in own)
        # What is not said is left out, as in OpenAI's strict mode: another property of the same
        # name as one of these could undo it.
        return {
            "properties": properties,
            "required": list(dict.fromkeys(required)),
            "additionalProperties": False if is_closed or properties else others,
        }

    def _patterns(self, own: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        patterns = self._each(own["patternProperties"], f"{place}/patternProperties", depth)
        is_alone = own.keys() <= {"patternProperties", "additionalProperties"}
        if len(patterns) > 1 or not is_alone:
            raise refuse(
                f"{place}/patternProperties",
                "'patternProperties' is not enforced beside other properties",
            )
        [(pattern, schema)] = patterns.items()
        pattern = read_pattern(pattern, f"{place}/patternProperties")
        if schema is False:
            return {"properties": {}, "additionalProperties": False}
        return {"patternProperties": {pattern: schema}, "additionalProperties": False}

    def _array(self, own: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        check_lengths(own, place)
        own = with_contained(own, place)
        # One item differs from all others.
        if own.pop("uniqueItems", False) is not False and own.get("maxItems", 2) not in (0, 1):
            raise refuse(f"{place}/uniqueItems", "the keyword 'uniqueItems' is not enforced")
        first = own.get("prefixItems", [])
        if not isinstance(first, list):
            raise refuse(f"{place}/prefixItems", "a list of schemas is expected")
        items = own.get("items", True)
        if isinstance(items, dict):
            items = self.read(items, f"{place}/items", depth + 1)
        elif not isinstance(items, bool):
            raise refuse(f"{place}/items", "a list under 'items' is not enforced")
        read = {**own, "items": items}
        if first:
            read["prefixItems"] = [
                self.read({} if each is True else each, f"{place}/prefixItems/{index}", depth + 1)
                for index, each in enumerate(first)
            ]
        return read


def enforceable(schema: Any) -> Any:
    """The schema for the compiler. Raises NotEnforced, which names what cannot be enforced."""
    return enforceable_part(schema, schema, "")


def enforceable_part(root: Any, part: Any, place: str) -> Any:
    """A schema that stands at this place of another, for the compiler. Raises NotEnforced."""
    return _Reader(Merger(root)).read_all(part, place)


def enforceable_arguments(schema: Any) -> Any:
    """The same of a tool's arguments. Raises NotEnforced also if a value may be no object."""
    read = enforceable(schema)
    if not _Reader(Merger(schema)).makes_objects(schema):
        raise refuse("", "arguments are an object, and other values are valid; 'type' is expected")
    return read
