"""Grammars that take long, are enormous, or make no sense: 200 of ten families, always the same."""

import json
import random
from collections.abc import Callable
from typing import Any

from raydix.runtime.messages.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

NUM_PER_FAMILY = 20
NUM_GROUPS = 10
_SCHEMA, _REGEX = GrammarKind.JSON_SCHEMA, GrammarKind.REGEX
_EBNF, _TAG = GrammarKind.EBNF, GrammarKind.STRUCTURAL_TAG
Made = tuple[GrammarKind, str]


def _schema(schema: Any) -> Made:
    return _SCHEMA, json.dumps(schema)


def _pattern(pattern: str) -> Made:
    return _schema({"type": "string", "pattern": pattern})


def _nested(draw: random.Random) -> Made:
    depth = draw.choice([40, 65, 300, 2000, 9000])
    head, middle, tail = draw.choice(
        [
            ('{"items":', "{}", "}"),
            ('{"properties":{"a":', "{}", "}}"),
            ('{"anyOf":[', '{"type":"null"}', "]}"),
            ('{"allOf":[', '{"type":"null"}', "]}"),
            ("[", "", "]"),
        ]
    )
    return draw.choice(
        [
            (_SCHEMA, head * depth + middle + tail * depth),
            (_REGEX, "(" * depth + "a" + ")" * depth),
            (_REGEX, "(?:a|" * depth + "a" + ")?" * depth),
            (_EBNF, "root ::= " + "(" * depth + '"a"' + ")*" * depth),
            (_TAG, '{"format":' * depth + "1" + "}" * depth),
        ]
    )


def _enums(draw: random.Random) -> Made:
    count = draw.choice([500, 3000, 9000])
    values: list[Any] = draw.choice(
        [
            [f"{i:07}" for i in range(count)],
            [draw.random() for _ in range(count // 3)],
            ["x" * (count * 9), "y"],
            [{"a": [i, str(i)]} for i in range(count // 3)],
            [chr(0x4E00 + i) * 2 for i in range(count)],
        ]
    )
    return _schema(
        draw.choice(
            [
                {"enum": values},
                {"type": "array", "items": {"enum": values}},
                {"properties": {f"p{i}": {"enum": values[:100]} for i in range(40)}},
            ]
        )
    )


def _counts(draw: random.Random) -> Made:
    count = draw.choice([900, 20_000, 10**6, 10**11, 10**25])
    return draw.choice(
        [
            _schema({"type": "array", "minItems": count}),
            _schema({"type": "array", "maxItems": count, "items": {"enum": [1, 2]}}),
            _schema({"type": "array", "minItems": count, "items": {"type": "object"}}),
            _schema({"type": "string", "minLength": count}),
            _schema({"type": "string", "maxLength": count}),
            _schema({"type": "integer", "minimum": -count, "maximum": count + 7}),
            _pattern(f"^(?:ab|c){{{count}}}$"),
            (_REGEX, f"[^a]{{0,{count}}}[^b]{{{count},}}"),
            (_REGEX, f"(((a{{1,{count}}}){{1,500}}){{1,500}}){{1,500}}"),
            (_EBNF, f'root ::= "a"{{{count}}}'),
            (_EBNF, f'root ::= ("a" | "b" r){{1,{count}}}\nr ::= [0-9]{{{count}}}'),
        ]
    )


def _regexes(draw: random.Random) -> Made:
    part = draw.choice(["(a*)*", "(a|a)*", "(a|aa)+", "(.*)*x", "(a?){9}", "((a+)+)+", "(a*b*)*"])
    times = draw.choice([1, 20, 300, 2000])
    return draw.choice(
        [
            (_REGEX, part * times),
            (_REGEX, f"({part * times})*"),
            (_REGEX, "|".join([part] * times)),
            _pattern(f"^{part * times}$"),
        ]
    )


def _cycles(draw: random.Random) -> Made:
    length = draw.choice([1, 2, 30, 500])
    names = [f"#/$defs/d{(i + 1) % length}" for i in range(length)]
    shape: Callable[[str], Any] = draw.choice(
        [
            lambda to: {"$ref": to},
            lambda to: {"anyOf": [{"$ref": to}, {"$ref": to}]},
            lambda to: {"allOf": [{"$ref": to}]},
            lambda to: {"type": "array", "minItems": 1, "items": {"$ref": to}},
            lambda to: {"properties": {"a": {"$ref": to}}, "required": ["a"]},
            lambda to: {"oneOf": [{"$ref": to}, {"type": "null"}]},
        ]
    )
    return _schema(
        {"$ref": "#/$defs/d0", "$defs": {f"d{i}": shape(to) for i, to in enumerate(names)}}
    )


def _bombs(draw: random.Random) -> Made:
    depth, width = draw.choice([(10, 10), (30, 3), (60, 2), (200, 40)])
    last: Any = draw.choice([{"type": "null"}, {"type": "string"}, {"enum": ["a", "b"]}])
    keyword = draw.choice(["anyOf", "allOf", "oneOf", "prefixItems", "properties", "rules"])
    if keyword == "rules":
        rules = [f"r{i} ::= " + f"r{i + 1} " * width for i in range(depth)]
        return _EBNF, "\n".join(["root ::= r0", *rules, f'r{depth} ::= "a" | "b"'])
    refs = [[{"$ref": f"#/$defs/d{i + 1}"}] * width for i in range(depth)]
    parts: list[Any] = [
        {"properties": {f"p{i}": each for i, each in enumerate(own)}}
        if keyword == "properties"
        else {keyword: own}
        for own in refs
    ]
    return _schema(
        {"$ref": "#/$defs/d0", "$defs": {f"d{i}": each for i, each in enumerate([*parts, last])}}
    )


def _alternatives(draw: random.Random) -> Made:
    count = draw.choice([200, 2000, 9000])
    words = [f"{draw.randrange(10**6)}" for _ in range(count)]
    return draw.choice(
        [
            (_REGEX, "|".join(words)),
            (_REGEX, f"({'|'.join(words)})*" * 1),
            (_EBNF, "root ::= " + " | ".join(f'"{each}"' for each in words)),
            (_EBNF, "root ::= " + " | ".join(f'r{i} "x"' for i in range(count))),
            _schema({"anyOf": [{"const": each} for each in words[:3000]]}),
            _schema({"anyOf": [{"properties": {each: True}} for each in words[:1500]]}),
            _schema({"oneOf": [{"type": "object"}, {"type": "array"}] * (count // 4)}),
            _schema({"type": "object", "required": words[:4000]}),
            _schema({"type": "object", "properties": {each: {} for each in words[:1500]}}),
        ]
    )


def _classes(draw: random.Random) -> Made:
    part = draw.choice(
        ["[^a]", r"\W", "[\u0080-\U0010ffff]", r"[\x00-\x7f]", r"[^\u0000-\uffff]", "[z-a]", "[]"]
    )
    times = draw.choice(["", "{0,400}", "{30,}", "*"])
    repeated = draw.choice([1, 40, 1000])
    return draw.choice(
        [
            (_REGEX, f"{part}{times}" * repeated),
            _pattern(f"^{part}{times}$"),
            _pattern(f"{part}{times}" * repeated),
            (_EBNF, "root ::= " + f"{part}{times} " * repeated),
            (_REGEX, "[" + "".join(chr(0x4E00 + 2 * i) for i in range(4000)) + "]" + times),
        ]
    )


def _rules(draw: random.Random) -> Made:
    count = draw.choice([2, 30, 900])
    texts = [
        'root ::= root root | "a" | ""',
        "root ::= root",
        'root ::= root "a"',
        'root ::= "" root | root ""',
        "root ::= (" + '""* ' * count + ")*",
        'root ::= a | b\na ::= b "x" | b\nb ::= a "y" | a',
        "root ::= missing",
        'other ::= "a"',
        "",
        "root ::=",
        'root ::= "',
        "root ::= ((",
        "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | "a"' for i in range(count)),
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{(i + 1) % count}" for i in range(count)),
        "root ::= " + "r? " * count + '\nr ::= "a" r | r "a" | "a"',
        'root ::= "a"\n' * count,
        "root ::= " + " | ".join(["root root"] * count) + ' | "a"',
    ]
    return _EBNF, draw.choice(texts)


def _nonsense(draw: random.Random) -> Made:
    value: Any = draw.choice([None, [], "x", -1, 1e308, {}, [[]], [None], True, {"": None}])
    keyword = draw.choice(
        [
            *("type", "properties", "required", "items", "prefixItems", "enum", "anyOf", "$ref"),
            *("pattern", "minLength", "minItems", "minimum", "additionalProperties", "$defs"),
            *("patternProperties", "format", "const", "allOf"),
        ]
    )
    return draw.choice(
        [
            _schema({keyword: value}),
            _schema(
                {"type": draw.choice(["object", "array", "string", "integer"]), keyword: value}
            ),
            _schema({"properties": {"a" * 60_000: {keyword: value}}}),
            _schema({"type": "object", "properties": {'\0\n"\\': {keyword: value}}}),
            (_SCHEMA, f'{{"type": "integer", "minimum": {"-1" + "0" * 4000}}}'),
            (_SCHEMA, '{"type": "array", "minItems": 1e400, "maxItems": NaN}'),
            (_SCHEMA, '{"const": "\\ud800"}'),
            (_SCHEMA, draw.choice(["null", "", "{", "[1]", "NaN", '"x"'])),
            (
                _TAG,
                draw.choice(["null", "{}", '{"type": "structural_tag", "format": {"type": 1}}']),
            ),
            (_TAG, json.dumps({"type": "structural_tag", "format": {"type": "json_schema"}})),
            (
                _TAG,
                json.dumps({"type": "structural_tag", "format": {"type": "regex", keyword: value}}),
            ),
            (
                _REGEX,
                draw.choice(["(", "*", "a{2,1}", "\\", "[", "(?=a)b", "\\p{L}", "a{,}", "\0"]),
            ),
        ]
    )


_FAMILIES = (
    *(_nested, _enums, _counts, _regexes, _cycles, _bombs, _alternatives, _classes, _rules),
    _nonsense,
)


def hostile_grammars(group: int) -> list[Grammar]:
    """One of ten groups, each with some of every family."""
    made = []
    for family in _FAMILIES:
        draw = random.Random(f"{family.__name__} {group}")
        for _ in range(NUM_PER_FAMILY // NUM_GROUPS):
            kind, text = family(draw)
            made.append(
                Grammar(kind=kind, text=text.encode()[:MAX_GRAMMAR_BYTES].decode(errors="ignore"))
            )
    return made
