"""What a JSON schema says of the types and values that it allows."""

from collections.abc import Mapping
from typing import Any

from raydix.runtime.model.grammars.schema_strings import refuse

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
        *("writeOnly", "$comment", "$schema", "$defs", "definitions", "contentMediaType"),
        *("contentEncoding", "contentSchema", "discriminator", "$vocabulary"),
    }
)
"""What demands nothing of a value."""
OF_TYPE = {
    "object": frozenset(
        {
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
        }
    ),
    "array": frozenset(
        {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains"}
    ),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
OF_TYPE["integer"] = OF_TYPE["number"]


def types(schema: Mapping[str, Any], place: str) -> list[str] | None:
    """The types that a schema allows; None: it does not say."""
    if "type" not in schema:
        return None
    given = schema["type"]
    told = given if isinstance(given, list) else [given]
    if not told or not all(isinstance(each, str) and each in OF_TYPE for each in told):
        raise refuse(f"{place}/type", f"{given!r:.80} is no type of JSON")
    return told


def possible_types(schema: Mapping[str, Any]) -> set[str] | None:
    """The types of values that a schema may allow, whole numbers counting as numbers."""
    given = schema.get("type")
    if given is None:
        return None
    told = given if isinstance(given, list) else [given]
    return {"number" if each == "integer" else str(each) for each in told}


def kinds_by_keywords(schema: Mapping[str, Any]) -> list[str]:
    """The types of which the keywords of a schema say something."""
    return [
        kind for kind, keywords in OF_TYPE.items() if kind != "integer" and schema.keys() & keywords
    ]


def makes_objects(schema: Mapping[str, Any]) -> bool:
    """Whether every value that comes of a schema is an object."""
    if "type" in schema:
        return possible_types(schema) == {"object"}
    return kinds_by_keywords(schema) == ["object"]


def constants(schema: Any) -> list[Any] | None:
    """The values that a schema names, of which each has to be one."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other
