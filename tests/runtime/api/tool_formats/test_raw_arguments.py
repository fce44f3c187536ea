"""Raw arguments: what is a string, and what other JSON, is told by all that the schema says."""

import json
from typing import Any

import pytest

from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import Arguments
from raydix.runtime.api.tool_formats.table import TOOL_FORMATS
from raydix.runtime.config.policies import ToolFormatName

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
DEFINITIONS = {
    "text": {"type": "string"},
    "codes": {"enum": ["1", 2]},
    "self": {"$ref": "#/$defs/self"},
    "twice": {"allOf": [{"$ref": "#/$defs/twice"}, {"$ref": "#/$defs/twice"}]},
}
WRITTEN = {
    ToolFormatName.QWEN_CODER: (
        "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    ),
    ToolFormatName.GLM: (
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    ),
    ToolFormatName.MINIMAX: (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{}</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
}


def read(name: ToolFormatName, schema: Any, text: str) -> Any:
    """The value of the argument of a call."""
    [calls] = [each for each in TOOL_FORMATS if each.name is name]
    tool = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    parser = AnswerParser(AnswerFormat(calls=calls, tools={"f": tool}))
    events = [*parser.push(WRITTEN[name].format(text)), *parser.finish()]
    return json.loads("".join(each.text for each in events if isinstance(each, Arguments)))["a"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (OPTIONAL, {"53111": "53111", "true": "true", "null": None, '"b"': '"b"', "b": "b"}),
        ({"type": ["string", "null"]}, {"2.0": "2.0", "null": None}),
        ({"type": ["string", "integer"]}, {"2": 2, "2.5": "2.5", "true": "true"}),
        ({"enum": ["1", "2"]}, {"1": "1", '"2"': "2", "3": "3"}),
        ({"enum": ["1", 2, None]}, {"1": "1", "2": 2, "null": None}),
        ({"const": "7"}, {"7": "7"}),
        ({"$ref": "#/$defs/text"}, {"7": "7", "null": "null"}),
        ({"anyOf": [{"$ref": "#/$defs/codes"}, {"type": "boolean"}]}, {"1": "1", "true": True}),
        ({"oneOf": [{"type": "string"}, {"type": "array"}]}, {"[1]": [1], "1": "1"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"null": "null"}),
        ({"minLength": 1}, {"7": "7"}),
        ({"type": "string", "minLength": 1}, {"7": "7"}),
        ({"type": "integer"}, {"7": 7, '"7"': "7", "b": "b"}),
        ({"type": "object"}, {'{"b": 1}': {"b": 1}}),
        ({}, {"7": 7, '"7"': "7", "b": "b"}),
        ({"anyOf": [{"description": "Any."}, {"type": "null"}]}, {"7": 7, '"7"': "7"}),
        ({"$ref": "#/$defs/none"}, {"7": 7}),
        ({"$ref": "#/$defs/self"}, {"7": 7, "b": "b"}),
        ({"$ref": "#/$defs/twice"}, {"7": 7}),
        (True, {"7": 7}),
    ],
)
def test_values_are_what_their_schema_takes(
    name: ToolFormatName, schema: Any, values: dict[str, Any]
) -> None:
    for text, value in values.items():
        told = read(name, schema, text)
        assert (told, type(told)) == (value, type(value)), text
