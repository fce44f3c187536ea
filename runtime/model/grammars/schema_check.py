"""JSON schemas as the compiler of grammars takes them: all that they demand, or none of them.

The compiler passes over some keywords in silence. So a schema is read here first: what would not be
enforced is refused by name and place, and what can be said in another way is. The outputs of the
schema that comes back are valid under the one that was given; they may be fewer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydix.runtime.model.grammars.schema_strings import check_pattern, read_string, refuse

MAX_DEPTH = 64
"""The deepest nesting of a schema."""
_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
        *("writeOnly", "$comment", "$schema", "$defs", "definitions", "contentMediaType"),
        *("contentEncoding", "contentSchema", "discriminator", "$vocabulary"),
    }
)
"""What demands nothing of a value."""
_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_CHOICES = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const")
"""A schema has one of these at most, and nothing besides but what belongs to it."""
_NOT_ENFORCED = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"),
        *("propertyNames", "minProperties", "maxProperties", "multipleOf", "additionalItems"),
        *("$dynamicRef", "$recursiveRef", "$id", "id", "$anchor", "$dynamicAnchor", "nullable"),
    }
)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the parts of one schema."""

    root: Any

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
        definitions = {
            name: self._each(schema[name], f"{place}/{name}", depth)
            for name in ("$defs", "definitions")
            if name in schema
        }
        asserted = {name: each for name, each in schema.items() if name not in _ANNOTATIONS}
        return {**self._asserted(asserted, place, depth), **definitions}

    def _each(self, schemas: Any, place: str, depth: int) -> dict[str, Any]:
        if not isinstance(schemas, dict):
            raise refuse(place, f"{schemas!r:.40} stands where an object of schemas is expected")
        return {
            name: each if each is False else self.read(each, f"{place}/{name}", depth + 1)
            for name, each in schemas.items()
        }

    def _asserted(self, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        chosen = [name for name in _CHOICES if name in schema]
        if not chosen:
            return self._typed(schema, place, depth)
        if len(chosen) > 1:
            raise refuse(place, f"{chosen[0]!r} is not enforced beside {chosen[1]!r}")
        name = chosen[0]
        known = {keyword for keywords in _OF_TYPE.values() for keyword in keywords}
        beside = sorted((schema.keys() & known) | ({"type"} & schema.keys()))
        if name in ("enum", "const"):
            beside = [each for each in beside if each != "type"]
        elif name == "anyOf" and beside == ["type"]:
            self._check_types(schema, place)
            beside = []
        if beside:
            raise refuse(place, f"{beside[0]!r} is not enforced beside {name!r}")
        return self._choice(name, schema, place, depth)

    def _choice(self, name: str, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        value, own = schema[name], f"{place}/{name}"
        match name:
            case "$ref":
                self.target(value, own)
                return {"$ref": value}
            case "enum" | "const":
                values = value if name == "enum" else [value]
                if not isinstance(values, list) or not values:
                    raise refuse(own, "a list of values is expected")
                types = _types(schema, place)
                values = [each for each in values if types is None or _is_of(each, types)]
                if not values:
                    raise refuse(own, "no value is of the type")
                return {"enum": values}

        if not isinstance(value, list) or not value:
            raise refuse(own, "a list of schemas is expected")
        parts = [
            self.read(each, f"{own}/{index}", depth + 1)
            for index, each in enumerate(value)
            if each is not False
        ]
        if not parts:
            raise refuse(own, "no value is valid")
        if name == "allOf":
            if len(value) > 1:
                raise refuse(own, "several schemas under 'allOf' are not enforced together")
            return parts[0] if isinstance(parts[0], dict) else {}
        if name == "oneOf" and not self._are_disjoint(value):
            raise refuse(
                own,
                "schemas under 'oneOf' that are not told apart by type or by a "
                "required constant are not enforced; use 'anyOf'",
            )
        return {"anyOf": parts}

    def _check_types(self, schema: dict[str, Any], place: str) -> None:
        """Each branch has a type of its own, which is among those beside the branches."""
        types = _types(schema, place) or ()
        for each in schema["anyOf"] if isinstance(schema["anyOf"], list) else ():
            own = _types(each, place) if isinstance(each, dict) else None
            if own is None or not all(one in types for one in own):
                raise refuse(place, "'type' is not enforced beside 'anyOf'")

    def target(self, pointer: Any, place: str) -> Any:
        """The schema that a `$ref` names."""
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise refuse(place, f"{pointer!r:.80} is not followed; expected '#/...'")
        schema = self.root
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, dict) or name not in schema or "%" in name:
                raise refuse(place, f"there is no {pointer!r:.80}")
            schema = schema[name]
        return schema

    def _resolved(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            schema = self.target(schema["$ref"], "")
        return None

    def makes_objects(self, schema: Any, depth: int) -> bool:
        """Whether every value that comes of a schema which can be enforced is an object."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return False
        if "$ref" in schema:
            return self.makes_objects(self.target(schema["$ref"], ""), depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return all(
                    each is False or self.makes_objects(each, depth + 1) for each in schema[name]
                )
        values = _constants(schema)
        return _makes_objects(schema) if values is None else all(map(_is_object, values))

    def _are_disjoint(self, schemas: Sequence[Any]) -> bool:
        branches = [self._resolved(each) for each in schemas]
        return all(
            isinstance(one, dict) and isinstance(other, dict) and self._are_apart(one, other)
            for index, one in enumerate(branches)
            for other in branches[index + 1 :]
        )

    def _are_apart(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        first, second = _possible_types(one), _possible_types(other)
        if first is not None and second is not None and not first & second:
            return True
        values, others = _constants(one), _constants(other)
        if values is not None and others is not None:
            return not any(_is_same(a, b) for a in values for b in others)
        # What comes of each is an object, which the other one's constant refuses.
        if not _makes_objects(one) or not _makes_objects(other):
            return False
        for name in {*one.get("required", ())} & {*other.get("required", ())}:
            a = _constants(self._resolved(one.get("properties", {}).get(name)))
            b = _constants(self._resolved(other.get("properties", {}).get(name)))
            if a is not None and b is not None and not any(_is_same(x, y) for x in a for y in b):
                return True
        return False

    def _typed(self, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        types = _types(schema, place)
        if types is None:
            # Keywords of one type say nothing of values of others: of these there are none, then.
            types = _kinds_by_keywords(schema)
            if not types:
                return {}
        branches = [self._of_type(kind, schema, place, depth) for kind in dict.fromkeys(types)]
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _of_type(self, kind: str, schema: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        own = {name: schema[name] for name in _OF_TYPE[kind] if name in schema}
        match kind:
            case "object":
                own = self._object(own, place, depth)
            case "array":
                own = self._array(schema, own, place, depth)
            case "string":
                own = read_string(own, place)
        return {"type": kind, **own}

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
        is_alone = not own.get("properties") and not own.get("required")
        if len(patterns) > 1 or not is_alone:
            raise refuse(
                f"{place}/patternProperties",
                "'patternProperties' is not enforced beside other properties",
            )
        [(pattern, schema)] = patterns.items()
        check_pattern(pattern, f"{place}/patternProperties")
        if schema is False:
            return {"properties": {}, "additionalProperties": False}
        return {"patternProperties": {pattern: schema}, "additionalProperties": False}

    def _array(
        self, schema: dict[str, Any], own: dict[str, Any], place: str, depth: int
    ) -> dict[str, Any]:
        if schema.get("uniqueItems") not in (None, False):
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
                self.read(each, f"{place}/prefixItems/{index}", depth + 1)
                for index, each in enumerate(first)
            ]
        return read


def enforceable(schema: Any) -> Any:
    """The schema for the compiler. Raises NotEnforced, which names what cannot be enforced."""
    return _Reader(schema).read(schema, "", 0)


def check_arguments(schema: Any) -> None:
    """Raise NotEnforced if a schema cannot be enforced, or if a value of it may be no object."""
    enforceable(schema)
    if not _Reader(schema).makes_objects(schema, 0):
        raise refuse("", "arguments are an object, and other values are valid; 'type' is expected")


def _types(schema: Mapping[str, Any], place: str) -> list[str] | None:
    """The types that a schema allows; None: it does not say."""
    if "type" not in schema:
        return None
    given = schema["type"]
    types = given if isinstance(given, list) else [given]
    if not types or not all(isinstance(each, str) and each in _OF_TYPE for each in types):
        raise refuse(f"{place}/type", f"{given!r:.80} is no type of JSON")
    return types


def _possible_types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types of values that a schema may allow, whole numbers counting as numbers."""
    given = schema.get("type")
    if given is None:
        return None
    types = given if isinstance(given, list) else [given]
    return {"number" if each == "integer" else str(each) for each in types}


def _kinds_by_keywords(schema: Mapping[str, Any]) -> list[str]:
    return [
        kind
        for kind, keywords in _OF_TYPE.items()
        if kind != "integer" and schema.keys() & keywords
    ]


def _makes_objects(schema: Mapping[str, Any]) -> bool:
    """Whether every value that comes of a schema is an object."""
    if "type" in schema:
        return _possible_types(schema) == {"object"}
    return _kinds_by_keywords(schema) == ["object"]


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def _is_of(value: Any, types: Sequence[str]) -> bool:
    return any(kind in types for kind in _kinds(value))


def _kinds(value: Any) -> Iterator[str]:
    match value:
        case None:
            yield "null"
        case bool():
            yield "boolean"
        case int():
            yield from ("integer", "number")
        case float():
            yield "number"
            if value.is_integer():
                yield "integer"
        case str():
            yield "string"
        case list():
            yield "array"
        case dict():
            yield "object"
