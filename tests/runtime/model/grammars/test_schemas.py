"""Whatever a schema demands is enforced, or the schema is refused by name.

`--schemas 1000` draws more of them.
"""

import json
from typing import Any

import jsonschema
import pytest

pytest.importorskip("xgrammar")

from hypothesis import HealthCheck, given, seed, settings

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.schema_check import enforceable
from raydix.runtime.model.grammars.schema_merging import MAX_DEPTH
from raydix.runtime.model.grammars.schema_strings import MAX_LENGTH, NotEnforced
from tests.drawn_schemas import SCHEMAS
from tests.grammar_walks import compiler, walk

NUM_WALKS = 3
REFUSALS = ("cannot be enforced: ", "cannot be compiled: ", "has a grammar ")


def grammar_of(schema: Any) -> Grammar:
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))


def refusal_of(grammar: Grammar) -> str | None:
    try:
        compiler().compile(grammar)
    except BadRequest as error:
        return str(error)
    return None


def check(schema: Any) -> str:
    """What became of a schema."""
    grammar = grammar_of(schema)
    refusal = refusal_of(grammar)
    if refusal is not None:
        assert refusal.startswith(REFUSALS), refusal
        return "refused"
    for number in range(NUM_WALKS):
        text = walk(grammar, number)
        if text is None:
            continue
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        except RecursionError:
            # It refers to itself before any part of a value, so that no value is decided.
            return "endless"
    return "enforced"


def test_outputs_are_valid_or_the_schema_is_refused(pytestconfig: pytest.Config) -> None:
    outcomes: list[str] = []
    number = pytestconfig.getoption("--schemas")

    @seed(3)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(SCHEMAS)
    def draw(schema: Any) -> None:
        outcomes.append(check(schema))

    draw()

    assert outcomes.count("enforced") > len(outcomes) / 10, outcomes
    print(f"{outcomes.count('enforced')} of {len(outcomes)} schemas were enforced, others refused")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"not": {}}, "the keyword 'not' is not enforced at /not"),
        ({"properties": {"a": {"uniqueItems": True, "type": "array"}}}, "at /properties/a/uniq"),
        ({"$ref": "http://x.org/y"}, r"'http://x.org/y' is not followed; expected '#/...'"),
        ({"$ref": "#/$defs/z"}, r"there is no '#/\$defs/z' at /\$ref"),
        ({"type": "str"}, "'str' is no type of JSON at /type"),
        (
            {"type": "string", "pattern": "(?!a)b"},
            r"the regular expression '\(\?!a\)b' is not enforced",
        ),
        ({"type": "string", "maxLength": MAX_LENGTH + 1}, "more than 20000 characters"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' that are not told apart"),
        ({"required": ["a"], "additionalProperties": False}, "'a' is required, and may not be"),
        ({"allOf": [{"type": "object"}, {"type": "array"}]}, "no value is valid at #"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "two of the keyword 'pattern'"),
        ({"type": "integer", "multipleOf": 3}, "'multipleOf' is not enforced but for"),
        ({"type": "object", "minProperties": 1}, "not enforced beyond the 0 that are named"),
        ({"enum": [1, 2], "type": "string"}, "no value is valid at #"),
        ({"type": "integer", "minimum": 10**20}, "a number of up to .* is expected at /minimum"),
        ({"type": "array", "contains": {}, "maxItems": 0}, "no room for what has to be contained"),
        (False, "False stands where a schema of some value is expected at #"),
    ],
)
def test_what_is_not_enforced_is_named_with_its_place(schema: Any, told: str) -> None:
    with pytest.raises(NotEnforced, match=told):
        enforceable(schema)


def test_a_schema_may_be_nested_only_so_deep() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(MAX_DEPTH + 1):
        schema = {"type": "array", "items": schema}

    with pytest.raises(NotEnforced, match=f"nested deeper than {MAX_DEPTH}"):
        enforceable(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": ["z"]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {
            "oneOf": [
                {"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"
            ]
        },
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
        {"type": "string", "minLength": 3, "maxLength": 5},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "T"},
        {
            "allOf": [{"$ref": "#/$defs/b"}, {"properties": {"n": {"minimum": 3}}}],
            "required": ["n"],
            "$defs": {"b": {"type": "object", "properties": {"n": {"type": "integer"}, "m": {}}}},
        },
        {"type": "string", "enum": ["a", "bc"], "minLength": 2},
        {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["b"]}, {}]},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 100, "multipleOf": 5},
        {"type": "array", "contains": {"const": 3}, "items": {"type": "integer"}, "minItems": 2},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {}}, "minProperties": 1},
        {"type": "array", "maxItems": 1, "uniqueItems": True},
    ],
)
def test_what_is_often_asked_for_is_enforced(schema: dict[str, Any]) -> None:
    assert check(schema) == "enforced"
