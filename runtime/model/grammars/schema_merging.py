"""JSON schemas without branches: what stands beside `anyOf`, `allOf`, `$ref` or `enum` is merged.

A schema becomes some of which each value is valid under one; none of these has branches of its own,
but what they contain may have. Each is as strict as the one that they come of, or stricter.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from raydix.runtime.model.grammars.schema_strings import refuse
from raydix.runtime.model.grammars.schema_types import (
    ANNOTATIONS,
    OF_TYPE,
    constants,
    is_same,
    makes_objects,
    possible_types,
    types,
)

MAX_DEPTH = 64
"""The deepest nesting of a schema."""
BRANCHES = ("anyOf", "oneOf", "allOf", "$ref")
_MAX_ALTERNATIVES = 256
"""The most branches that what stands together may be taken apart into."""
_KEPT_MOST: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "minProperties": max,
    "maxProperties": min,
}
_OF_VALUES = (RecursionError, ArithmeticError, ValueError, TypeError, AttributeError)
"""Errors of checking values: of what is nested too deep, of numbers that are too large, and of what
a schema refers to if that is none, which nothing has checked.
"""
Flat = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Merger:
    """Takes the schemas of one document apart."""

    root: Any

    def alternatives(self, schema: Any, place: str, depth: int) -> list[Flat]:
        """Schemas without branches. Raises NotEnforced."""
        if depth > MAX_DEPTH:
            raise refuse(place, f"the schema is nested deeper than {MAX_DEPTH}")
        if schema is False:
            return []
        if schema is True:
            return [{}]
        if not isinstance(schema, dict):
            raise refuse(place, f"{schema!r:.40} stands where a schema of some value is expected")
        own = {
            name: each
            for name, each in schema.items()
            if name not in BRANCHES and name not in ANNOTATIONS
        }
        alternatives = self._with_constants(own, place)
        for choices in self._branches(schema, place, depth):
            if len(alternatives) * len(choices) > _MAX_ALTERNATIVES:
                raise refuse(place, f"more than {_MAX_ALTERNATIVES} combinations are not enforced")
            pairs = [(one, other) for one in alternatives for other in choices]
            merged = [self._merged(one, other, place) for one, other in pairs]
            alternatives = [each for each in merged if each is not None]
        return alternatives

    def _branches(
        self, schema: Mapping[str, Any], place: str, depth: int
    ) -> Iterator[Sequence[Flat]]:
        """What each value has to be one of, for each keyword of `schema` that has branches."""
        for name in BRANCHES:
            if name not in schema:
                continue
            own = f"{place}/{name}"
            if name == "$ref":
                yield self.alternatives(self.target(schema[name], own), own, depth + 1)
                continue
            given = branches_of(schema[name], own)
            if name == "oneOf":
                self.check_disjoint(given, own)
            parts = [
                self.alternatives(each, f"{own}/{index}", depth + 1)
                for index, each in enumerate(given)
            ]
            if name == "allOf":
                yield from parts
            else:
                yield [each for part in parts for each in part]

    def _with_constants(self, own: Flat, place: str) -> list[Flat]:
        """A schema that names values, and nothing besides, if it names any."""
        if not isinstance(own.get("enum", [None]), list) or own.get("enum") == []:
            raise refuse(f"{place}/enum", "a list of values is expected")
        values = constants(own)
        if values is None:
            return [own]
        if len(own) > 1:
            values = self.valid(values, (_without_values(own),), place)
        return [{"enum": values}] if values else []

    def _merged(self, one: Flat, other: Flat, place: str) -> Flat | None:
        """What is valid under both; None: nothing is."""
        if not one or not other:
            return one or other
        for each, beside in ((one, other), (other, one)):
            values = constants(each)
            if values is not None:
                values = self.valid(values, (_without_values(each), beside), place)
                return {"enum": values} if values else None
        merged = {**one, **other}
        for name in one.keys() & other.keys():
            merged[name] = _both(name, one, other, place)
        if "properties" in merged or "additionalProperties" in merged:
            merged |= _properties(one, other, place)
        if "items" in merged or "prefixItems" in merged:
            merged |= _items(one, other)
        return None if merged.get("type") == [] else merged

    def valid(self, values: Sequence[Any], schemas: Sequence[Flat], place: str) -> list[Any]:
        """The values that are valid under all of some schemas. Raises NotEnforced."""
        import jsonschema
        from jsonschema_specifications import REGISTRY
        from referencing.exceptions import Unresolvable

        known = jsonschema.Draft202012Validator
        # By default what a '$ref' names would be fetched from wherever it says, files included.
        whole = known(self.root, registry=REGISTRY, format_checker=known.FORMAT_CHECKER)
        try:
            for each in schemas:
                known.check_schema(each)
            checkers = [whole.evolve(schema=each) for each in schemas]
            return [each for each in values if all(one.is_valid(each) for one in checkers)]
        except Unresolvable as error:
            raise refuse(place, f"{error.ref!r:.80} is not followed; expected '#/...'") from error
        except (jsonschema.SchemaError, re.error, *_OF_VALUES) as error:
            raise refuse(place, f"values cannot be checked ({type(error).__name__})") from error

    def target(self, pointer: Any, place: str) -> Any:
        """The schema that a `$ref` names."""
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise refuse(place, f"{pointer!r:.80} is not followed; expected '#/...'")
        schema = self.root
        for part in pointer.split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list) and name in map(str, range(len(schema))):
                schema = schema[int(name)]
            elif isinstance(schema, dict) and name in schema:
                schema = schema[name]
            else:
                raise refuse(place, f"there is no {pointer!r:.80}")
        return schema

    def check_disjoint(self, schemas: Sequence[Any], place: str) -> None:
        """Raise NotEnforced if a value may be valid under two of some schemas."""
        branches = [self._resolved(each) for each in schemas if each is not False]
        if _name_other_values(branches):
            return
        if not all(
            isinstance(one, dict) and isinstance(other, dict) and self._are_apart(one, other)
            for index, one in enumerate(branches)
            for other in branches[index + 1 :]
        ):
            raise refuse(
                place,
                "schemas under 'oneOf' that are not told apart by type or by a "
                "required constant are not enforced; use 'anyOf'",
            )

    def _resolved(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            schema = self.target(schema["$ref"], "")
        return None

    def _are_apart(self, one: Flat, other: Flat) -> bool:
        first, second = possible_types(one), possible_types(other)
        if first is not None and second is not None and not first & second:
            return True
        values, others = constants(one), constants(other)
        if values is not None and others is not None:
            return not any(is_same(a, b) for a in values for b in others)
        # What comes of each is an object, which the other one's constant refuses.
        if not makes_objects(one) or not makes_objects(other):
            return False
        for name in _required(one) & _required(other):
            a = constants(self._resolved(_property(one, name)))
            b = constants(self._resolved(_property(other, name)))
            if a is not None and b is not None and not any(is_same(x, y) for x in a for y in b):
                return True
        return False


def _name_other_values(schemas: Sequence[Any]) -> bool:
    """Whether all of some schemas name values, and no two the same. False also for lists and
    objects among these, which are compared one by one.
    """
    seen: set[Any] = set()
    for schema in schemas:
        values = constants(schema)
        if values is None or any(isinstance(each, list | dict) for each in values):
            return False
        own = {(isinstance(each, bool), each) for each in values}
        if seen & own:
            return False
        seen |= own
    return True


def _required(schema: Flat) -> set[str]:
    """The properties that have to be there; what is none has a place where that is told."""
    given = schema.get("required")
    return {each for each in given if isinstance(each, str)} if isinstance(given, list) else set()


def _property(schema: Flat, name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def _without_values(schema: Flat) -> Flat:
    """What a schema demands besides the values that it names: they are not looked for in a list of
    themselves.
    """
    named = "const" if "const" in schema else "enum"
    return {name: each for name, each in schema.items() if name != named}


def branches_of(value: Any, place: str) -> list[Any]:
    """A list of schemas. Raises NotEnforced."""
    if not isinstance(value, list) or not value:
        raise refuse(place, "a list of schemas is expected")
    return value


def _both(name: str, one: Flat, other: Flat, place: str) -> Any:
    """What a keyword of both has to be."""
    first, second = one[name], other[name]
    if first == second and type(first) is type(second):
        return first
    match name:
        case "type":
            return _types_of_both(types(one, place) or [], types(other, place) or [])
        case "required" if isinstance(first, list) and isinstance(second, list):
            return [*first, *second]
        case "uniqueItems":
            return first or second
        case "properties" | "items" | "prefixItems" | "additionalProperties":
            # They are merged together.
            return second
    if name in _KEPT_MOST and _is_number(first) and _is_number(second):
        return _KEPT_MOST[name](first, second)
    if name not in _ASSERTED:
        return second
    raise refuse(place, f"two of the keyword {name!r} are not enforced together")


_ASSERTED = frozenset(
    {
        *(keyword for keywords in OF_TYPE.values() for keyword in keywords),
        *("not", "if", "then", "else", "maxContains", "propertyNames", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"),
        "additionalItems",
    }
)
"""Keywords that assert something; of others, which demand nothing, either will do."""


def _types_of_both(first: Sequence[str], second: Sequence[str]) -> list[str]:
    both = [each for each in first if each in second]
    # A whole number is a number.
    for some, others in ((first, second), (second, first)):
        if "integer" in some and "number" in others and not {"integer", "number"} & {*both}:
            both.append("integer")
    return both


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _properties(one: Flat, other: Flat, place: str) -> Flat:
    """The properties of both, each of which may be one of the others to the other."""
    named = [each.get("properties", {}) for each in (one, other)]
    if "patternProperties" in one or "patternProperties" in other:
        raise refuse(place, "'patternProperties' is not enforced beside other properties")
    if not all(isinstance(each, dict) for each in named):
        raise refuse(place, "an object of schemas is expected under 'properties'")
    others = [each.get("additionalProperties", True) for each in (one, other)]
    properties = {
        name: conjunction(*(own.get(name, rest) for own, rest in zip(named, others, strict=True)))
        for name in {**named[0], **named[1]}
    }
    merged: Flat = {"properties": properties}
    if "additionalProperties" in one or "additionalProperties" in other:
        merged["additionalProperties"] = conjunction(*others)
    return merged


def _items(one: Flat, other: Flat) -> Flat:
    """The items of both."""
    first, second = one.get("prefixItems", []), other.get("prefixItems", [])
    rests = one.get("items", True), other.get("items", True)
    merged: Flat = {"items": conjunction(*rests)}
    if not isinstance(first, list) or not isinstance(second, list):
        # The reader says what is expected.
        return {**merged, "prefixItems": None}
    if first or second:
        merged["prefixItems"] = [
            conjunction(
                first[index] if index < len(first) else rests[0],
                second[index] if index < len(second) else rests[1],
            )
            for index in range(max(len(first), len(second)))
        ]
    return merged


def conjunction(one: Any, other: Any) -> Any:
    """A schema of what is valid under both."""
    if one is False or other is False:
        return False
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}
