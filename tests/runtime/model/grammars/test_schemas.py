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
from raydix.runtime.model.grammars.schema_check import MAX_DEPTH, enforceable
from raydix.runtime.model.grammars.schema_strings import MAX_LENGTH, NotEnforced
from tests.drawn_schemas import SCHEMAS
from tests.grammar_walks import compiler, walk

NUM_WALKS = 3
REFUSALS = ("cannot be enforced: ", "cannot be compiled: ")


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
        if text is not None:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
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
        ({"allOf": [{"type": "object"}, {"type": "object"}]}, "several schemas under 'allOf'"),
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
    ],
)
def test_what_is_often_asked_for_is_enforced(schema: dict[str, Any]) -> None:
    assert check(schema) == "enforced"
