"""What each key of the configuration may be, in words, read from its JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from raydix.runtime.config.engine import EngineConfig

Schema = Mapping[str, Any]


def allowed_values(*models: type[BaseModel]) -> dict[str, str]:
    """The allowed values by dotted key; where backends of L3 differ, all that one allows.

    models: sections, instead of the whole configuration.
    """
    found: dict[str, list[str]] = {}
    roots = [model.model_json_schema() for model in models or (EngineConfig,)]
    every = [
        (key, words)
        for root in roots
        for key, schema in _keys(root, root.get("$defs", {}), "")
        for words in _alternatives(schema, root.get("$defs", {}))
    ]
    for key, words in every:
        known = found.setdefault(key, [])
        if words not in known:
            known.append(words)
    # `null` and the like come last, whichever section said so first.
    return {key: _joined(words) for key, words in found.items()}


def _joined(words: list[str]) -> str:
    return ", ".join(sorted(words, key=lambda each: each == "null"))


def _keys(section: Schema, sections: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, schema in section.get("properties", {}).items():
        yield f"{prefix}{name}", schema
        for inner in _sections_of(schema, sections):
            yield from _keys(inner, sections, f"{prefix}{name}.")


def _sections_of(schema: Schema, sections: Schema) -> Iterator[Schema]:
    for each in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "$ref" in each:
            named = sections[each["$ref"].rpartition("/")[2]]
            if "properties" in named:
                yield named
        elif each is not schema and "properties" in each:
            yield each
        elif each is not schema:
            yield from _sections_of(each, sections)


def _alternatives(schema: Schema, sections: Schema) -> Iterator[str]:
    """Each kind of value in words. A size is bytes or text, which are one kind."""
    parts = schema.get("anyOf") or schema.get("oneOf")
    if parts:
        is_size = {each.get("type") for each in parts} >= {"integer", "string"}
        if is_size:
            yield "size"
        for each in parts:
            if not (is_size and each.get("type") in ("integer", "string")):
                yield from _alternatives(each, sections)
    elif "$ref" in schema:
        named = sections[schema["$ref"].rpartition("/")[2]]
        if "properties" in named:
            yield "section"
        else:
            yield from _alternatives(named, sections)
    elif "properties" in schema:
        yield "section"
    elif "enum" in schema:
        yield from (f"`{value}`" for value in schema["enum"])
    elif "const" in schema:
        yield f"`{schema['const']}`"
    else:
        yield _plain(schema)


def _plain(schema: Schema) -> str:
    match schema.get("type"):
        case "integer" | "number" as kind:
            return _number("integer" if kind == "integer" else "number", schema)
        case "boolean":
            return "`true`, `false`"
        case "null":
            return "null"
        case "object":
            return "keys and values"
        case _:
            return "text"


def _number(kind: str, schema: Schema) -> str:
    bounds = {
        "minimum": "from",
        "exclusiveMinimum": "above",
        "maximum": "to",
        "exclusiveMaximum": "below",
    }
    said = [f"{word} {schema[name]:g}" for name, word in bounds.items() if name in schema]
    return " ".join([kind, *said])
