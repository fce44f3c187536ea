"""Enforced calls: whatever a model writes, what comes out are calls of the tools that are given."""

import json
from typing import Any

import jsonschema
import pytest

pytest.importorskip("xgrammar")

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import Arguments, CallBegun, CallBroken, Content
from raydix.runtime.api.tool_formats.structure import (
    EnforcedTool,
    Part,
    behind_reasoning,
    calls_among_text,
    demanded_calls,
    enforced,
)
from raydix.runtime.api.tool_formats.table import TOOL_FORMATS
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.config.policies import ToolFormatName
from tests.grammar_walks import compiler, walk

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "where": {"enum": ["in", "out"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = (
    EnforcedTool(name="weather", schema=SCHEMA, is_strict=True),
    EnforcedTool(name="now", schema={}, is_strict=False),
)
SCHEMAS = {"weather": SCHEMA, "now": {"type": "object", "properties": {}}}
TEMPLATES = {ToolFormatName.DEEPSEEK: ("", "```json"), ToolFormatName.MISTRAL: ("", "[ARGS]")}
FORMATS = [
    pytest.param(each, template, id=f"{each.name}{index or ''}")
    for each in TOOL_FORMATS
    for index, template in enumerate(TEMPLATES.get(each.name, ("",)))
]
Call = tuple[str, str]


def read(tool_format: ToolFormat, text: str) -> tuple[str, list[Call]]:
    """Content and calls of a whole answer."""
    parser = AnswerParser(AnswerFormat(calls=tool_format, tools=SCHEMAS))
    content = ""
    calls: list[Call] = []
    for event in [*parser.push(text), *parser.finish()]:
        match event:
            case Content():
                content += event.text
            case CallBegun():
                calls.append((event.name, ""))
            case Arguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
            case CallBroken():
                raise AssertionError(f"a call of {text!r} is broken")
    return content, calls


def outputs(part: Part, number: int = 6) -> list[str]:
    grammar = enforced(part, "tools").to_grammar()
    texts = [walk(grammar, seed) for seed in range(number)]
    whole = [text.decode(errors="replace") for text in texts if text is not None]
    assert whole, "no walk comes to its end"
    return whole


def compiled(part: Part) -> bytes:
    return compiler().compile(enforced(part, "tools").to_grammar())


def check_calls(calls: list[Call]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.part
@pytest.mark.parametrize(("tool_format", "template"), FORMATS)
@pytest.mark.parametrize("is_single", [True, False])
def test_demanded_calls_are_read_as_calls_of_these_tools(
    tool_format: ToolFormat, template: str, is_single: bool
) -> None:
    structure = tool_format.structure(template)

    for text in outputs(demanded_calls(structure, TOOLS, is_single=is_single)):
        content, calls = read(tool_format, text)
        assert content.strip() == ""
        assert calls
        assert len(calls) == 1 or not is_single
        check_calls(calls)


@pytest.mark.part
@pytest.mark.parametrize(("tool_format", "template"), FORMATS)
def test_calls_among_text_are_well_formed(tool_format: ToolFormat, template: str) -> None:
    structure = tool_format.structure(template)
    part = calls_among_text(structure, TOOLS, is_single=False)

    for text in outputs(part, 12):
        check_calls(read(tool_format, text)[1])


def test_one_tool_alone_is_called_where_it_is_named() -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    part = demanded_calls(hermes.structure(""), TOOLS[1:], is_single=True)

    assert {name for text in outputs(part) for name, _ in read(hermes, text)[1]} == {"now"}


@pytest.mark.parametrize("begin", ["", "<think>"])
def test_reasoning_may_come_before_what_is_demanded(begin: str) -> None:
    part = behind_reasoning({"type": "const_string", "value": "yes"}, "</think>", begin)

    for text in outputs(part):
        thought, end, answer = text.rpartition("</think>")
        assert answer.strip("\n") == "yes"
        assert end or (begin and not thought)


def test_a_schema_that_cannot_be_enforced_is_refused_if_the_tool_is_strict() -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    structure = hermes.structure("")
    schema = {"type": "object", "not": {}}

    loose = EnforcedTool(name="f", schema=schema, is_strict=False)
    part = demanded_calls(structure, [loose], is_single=True)
    assert compiled(part)

    strict = EnforcedTool(name="f", schema=schema, is_strict=True)
    with pytest.raises(BadRequest, match="f: the keyword 'not' is not enforced at /not"):
        compiled(demanded_calls(structure, [strict], is_single=True))


@pytest.mark.parametrize("is_strict", [True, False])
def test_no_schema_is_looked_at_before_the_compiler_does(
    is_strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    looked_at: list[Any] = []
    monkeypatch.setattr(jsonschema.Draft202012Validator, "iter_errors", looked_at.append)
    schema = {"enum": ["a" * 40 + "!"], "pattern": "^(a+)+$"}
    tool = EnforcedTool(name="f", schema={"properties": {"a": schema}}, is_strict=is_strict)

    part = demanded_calls(hermes.structure(""), [tool], is_single=True)
    calls_among_text(hermes.structure(""), [tool], is_single=True)

    assert enforced(part, "tools").to_grammar()
    assert not looked_at


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["object", "null"]},
        {"enum": [{}, 1]},
        {"anyOf": [{"type": "object"}, {"type": "array"}]},
        {"$ref": "#/$defs/number", "$defs": {"number": {"type": "number"}}},
        {"description": "Anything."},
    ],
)
def test_arguments_are_objects_whatever_a_schema_says(schema: dict[str, Any]) -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    structure = hermes.structure("")

    loose = EnforcedTool(name="now", schema=schema, is_strict=False)
    for text in outputs(demanded_calls(structure, [loose], is_single=True)):
        content, [(name, arguments)] = read(hermes, text)
        assert (content, name) == ("", "now")
        assert isinstance(json.loads(arguments), dict)

    strict = EnforcedTool(name="now", schema=schema, is_strict=True)
    with pytest.raises(BadRequest, match="now: arguments are an object"):
        compiled(demanded_calls(structure, [strict], is_single=True))


def test_schemas_of_objects_alone_are_enforced_however_they_say_so() -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    pet = {"type": "object", "properties": {"pet": {"const": 1}}, "required": ["pet"]}
    for schema in (
        pet,
        {"properties": pet["properties"], "required": ["pet"]},
        {"$ref": "#/$defs/pet", "$defs": {"pet": pet}},
        {"anyOf": [pet, {"const": {"pet": 1}}]},
    ):
        strict = EnforcedTool(name="now", schema=schema, is_strict=True)
        for text in outputs(demanded_calls(hermes.structure(""), [strict], is_single=True)):
            [(_, arguments)] = read(hermes, text)[1]
            assert json.loads(arguments) == {"pet": 1}


def test_a_name_that_would_break_out_of_its_call_is_refused() -> None:
    [hermes] = [each for each in TOOL_FORMATS if each.name is ToolFormatName.HERMES]
    tool = EnforcedTool(name='f", "x": "', schema={}, is_strict=False)

    with pytest.raises(BadParameter, match=r"tools.function.name"):
        demanded_calls(hermes.structure(""), [tool], is_single=True)
