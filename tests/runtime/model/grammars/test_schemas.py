"""Whatever a schema demands is enforced, or the schema is refused by name.

`--schemas 1000` draws more of them.
"""

import json
import re
from typing import Any

import jsonschema
import pytest

pytest.importorskip("xgrammar")

from hypothesis import HealthCheck, given, seed, settings

from raydix.errors import BadRequest
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars import compiling, locating
from raydix.runtime.model.grammars.schema_check import enforceable
from raydix.runtime.model.grammars.schema_merging import MAX_DEPTH
from raydix.runtime.model.grammars.schema_strings import MAX_LENGTH, NotEnforced, read_pattern
from tests.drawn_schemas import SCHEMAS
from tests.grammar_walks import byte_vocabulary, compiler, walk

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
        ({"type": "array", "minItems": -1}, "-1 is no whole number from 0 at /minItems"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "no list is as long as that at /maxI"),
        ({"format": "regex"}, "the format 'regex' is not enforced at /format"),
        ({"$ref": "#/$defs/n", "$defs": {"n": False}}, "False stands .* at /\\$defs/n"),
        (False, "False stands where a schema of some value is expected at #"),
    ],
)
def test_what_is_not_enforced_is_named_with_its_place(schema: Any, told: str) -> None:
    with pytest.raises(NotEnforced, match=told):
        enforceable(schema)


RANGE = {"type": "integer", "minimum": 5, "maximum": 1}
EMPTY = {"minimum": 1, "exclusiveMaximum": 1, "type": "number"}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (RANGE, "minimum greater than maximum at #"),
        ({"properties": {"ok": {}, "a": RANGE}}, "minimum greater than maximum at /properties/a"),
        (
            {"properties": {"a": {"type": "string", "pattern": "(("}}},
            "The parenthesis is not closed at /properties/a/pattern",
        ),
        ({"type": "array", "items": {"anyOf": [{}, EMPTY]}}, "empty range at /items/anyOf/1"),
        (
            {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"items": RANGE}}},
            "at /$defs/n/items",
        ),
        (
            {"properties": {"self": {"$ref": "#"}, "a": {"items": RANGE}}},
            "minimum greater than maximum at /properties/a/items",
        ),
        (
            {"properties": {"a": {"prefixItems": [{}], "maxItems": 0, "$ref": 5}}},
            "at /properties/a/$ref",
        ),
        (
            {"properties": {"a": {"type": "array", "prefixItems": [{}], "maxItems": 0}}},
            "maxItems is less than the number of prefixItems: 0 < 1 at /properties/a",
        ),
    ],
)
def test_what_cannot_be_compiled_is_told_with_its_place(schema: Any, told: str) -> None:
    refusal = refusal_of(grammar_of(schema))

    assert refusal is not None
    assert refusal.endswith(told)
    assert "line 1" not in refusal


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "odd"}]}, "/elements/1"),
        (
            {
                "type": "tag",
                "begin": "a",
                "content": {"type": "regex", "pattern": "(("},
                "end": "b",
            },
            "/content/pattern",
        ),
        ({"type": "json_schema", "json_schema": {"items": RANGE}}, "/json_schema/items"),
        ({"type": "json_schema", "json_schema": {"items": {"not": {}}}}, "/json_schema/items/not"),
        ({"type": "grammar", "grammar": "root ::= b"}, "/grammar"),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [{"begin": "<a>", "content": {"type": "const_string"}, "end": "<"}],
            },
            "/tags/0/content",
        ),
    ],
)
def test_of_a_structural_tag_the_part_is_named_that_is_wrong(part: Any, told: str) -> None:
    text = json.dumps({"type": "structural_tag", "format": part})
    refusal = refusal_of(Grammar(kind=GrammarKind.STRUCTURAL_TAG, text=text))

    assert refusal is not None
    assert refusal.endswith(f" at /format{told}")


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (GrammarKind.REGEX, "[b-a]", "the regular expression '[b-a]': Invalid character class"),
        (GrammarKind.EBNF, 'root ::= "a"\nb ::= c', "the grammar: EBNF parser error at line 2, "),
    ],
)
def test_what_kind_of_grammar_is_wrong_is_told(kind: GrammarKind, text: str, told: str) -> None:
    refusal = refusal_of(Grammar(kind=kind, text=text))

    assert refusal is not None
    assert refusal.startswith(f"cannot be compiled: {told}")


def test_the_place_of_a_fault_is_looked_for_in_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    refused = locating.is_refused

    def counted(convert: Any) -> bool:
        tried.append(convert)
        return refused(convert)

    monkeypatch.setattr(compiling, "is_refused", counted)
    monkeypatch.setattr(locating, "_MAX_S", 3600.0)
    many = {f"a{index}": {"type": "null"} for index in range(2000)}

    refusal = refusal_of(grammar_of({"properties": {**many, "z": RANGE}}))

    assert refusal is not None
    assert refusal.endswith("minimum greater than maximum at #")
    assert len(tried) < 300


NO_UTF8 = (b"\xe0\x9d\xa0", b"\xed\xa0\x80", b"\xc1\x81", b"\xf0\x80\x80\x80", b"\xc3")


@pytest.mark.parametrize(
    "pattern", ["^.$", "^[^a]$", r"^\S$", r"^[^\d\"]$", "^(?:é|.)$", "^[b-🙂]$"]
)
def test_a_pattern_matches_utf8_that_json_need_not_escape(pattern: str) -> None:
    vocabulary = byte_vocabulary()
    content = compiler().compile(grammar_of({"type": "string", "pattern": pattern}))

    def is_taken(character: bytes) -> bool:
        return not vocabulary.matcher(content, [*b'"', *character, *b'"']).is_over

    assert is_taken(b"b")
    assert all(is_taken(each.encode()) for each in "éझ🙂") or "\\" in pattern
    assert not any(is_taken(each) for each in (*NO_UTF8, b"\n", b"\x00", b'"'))


def test_negated_classes_leave_out_what_some_language_takes_for_a_member() -> None:
    # A digit of Arabic is one in Python, and none in ECMAScript.
    for pattern, others in (
        (r"^\D$", "٣"),
        (r"^[^\d]$", "٣"),
        (r"^[^\w]$", "é"),
        (r"^\S$", "\ufeff"),
    ):
        written = read_pattern(pattern, "")
        assert re.search(written, "+"), pattern
        assert not any(re.search(written, each) for each in others), pattern


def test_a_class_of_what_json_escapes_is_refused() -> None:
    with pytest.raises(NotEnforced, match="has no character that JSON writes without a backslash"):
        enforceable({"type": "string", "pattern": r"^[\\]+$"})


FORMATS = (
    *("date", "time", "date-time", "duration", "email", "idn-email", "hostname", "idn-hostname"),
    *("ipv4", "ipv6", "json-pointer", "relative-json-pointer", "uri", "iri", "iri-reference"),
    *("uri-reference", "uri-template", "uuid"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_what_has_a_format_is_of_it(name: str) -> None:
    schema = {"type": "string", "format": name}
    known = jsonschema.Draft202012Validator
    checker = known(schema, format_checker=known.FORMAT_CHECKER)

    for number in range(10):
        text = walk(grammar_of(schema), number)
        if text is not None:
            checker.validate(json.loads(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "2021-02-29"),
        ("date", "2100-02-29"),
        ("date", "2020-06-31"),
        ("time", "24:00:00Z"),
        ("ipv4", "1.2.03.4"),
        ("hostname", f"{'a' * 64}.org"),
        ("json-pointer", "/a\n"),
        ("json-pointer", "/~2"),
    ],
)
def test_what_is_no_format_is_not_taken(name: str, text: str) -> None:
    content = compiler().compile(grammar_of({"type": "string", "format": name}))
    assert byte_vocabulary().matcher(content, list(f'"{text}"'.encode())).is_over


def test_references_lead_to_any_schema_of_the_document() -> None:
    schema = {
        "properties": {
            "a": {"x-kept": {"type": "integer"}},
            "b": {"$ref": "#/properties/a/x-kept"},
            "c": {"type": "array", "prefixItems": [{"$ref": "#/$defs/p%25/anyOf/1"}]},
        },
        "required": ["b", "c"],
        "$defs": {"p%": {"anyOf": [{"not": {}}, {"const": "z"}]}, "unused": {"not": {}}},
    }
    assert check(schema) == "enforced"


def test_counts_may_be_written_with_a_point() -> None:
    schema = {"type": "array", "minItems": 2.0, "maxItems": 3.0, "items": {"maxLength": 2.0}}
    assert enforceable(schema)["maxItems"] == 3
    assert check(schema) == "enforced"


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
