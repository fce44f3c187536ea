"""What models write, and what it says."""

from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
)
from raydix.runtime.config.policies import ToolFormatName

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS = {"weather": SCHEMA, "time": {}}
BONN = '{"city": "Bonn"}'


def call(name: str = "weather", arguments: str = BONN, call_id: str | None = None) -> list[Event]:
    """A whole call."""
    return [CallBegun(name, call_id), Arguments(arguments), CallEnded()]


_HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
_OTHER = '<tool_call>{"name":"time","parameters":{}}</tool_call>'
HERMES: list[tuple[str, list[Event]]] = [
    ("", []),
    (" \n", [Content(" \n")]),
    ("\n\nPlain.\n", [Content("\n\nPlain.\n")]),
    ("a <tool and </tool_call> \n", [Content("a <tool and </tool_call> \n")]),
    (_HERMES, call()),
    (_HERMES.replace("\n", ""), call()),
    (f"\n\n{_HERMES}\n\n", call()),
    (f"I look.\n{_HERMES}", [Content("I look."), *call()]),
    (f"I look.\n\n{_HERMES}", [Content("I look.\n"), *call()]),
    (f"{_HERMES}\n{_OTHER}", [*call(), *call("time", "{}")]),
    (f"{_HERMES}\nDone.", [*call(), Content("\nDone.")]),
    (_HERMES.removesuffix("</tool_call>"), call()),
    ('<tool_call>{"name": "time"}</tool_call>', call("time", "{}")),
    ('<tool_call>{"name": "time", "arguments": null}</tool_call>', call("time", "{}")),
    ('<tool_call>{"arguments": {"city": "Bonn"}, "name": "weather"}</tool_call>', call()),
    (
        '<tool_call>{"id": [1, {"a": -2.5e3}], "name": "w\\u00e4", "arguments": "{}"}</tool_call>',
        call("wä", "{}"),
    ),
    (
        '<tool_call>{"name": "a", "arguments": {"b": "\\"}</tool_call>\\\\", "c": [{}]}}',
        call("a", '{"b": "\\"}</tool_call>\\\\", "c": [{}]}'),
    ),
    # What is none is content, before its name and after it.
    ("<tool_call>no</tool_call>", [Content("<tool_call>no</tool_call>")]),
    ("<tool_call>", [Content("<tool_call>")]),
    ('<tool_call>{"name": 5}</tool_call>', [Content('<tool_call>{"name": 5}</tool_call>')]),
    ('<tool_call>{"name": "\\ud800"}', [Content('<tool_call>{"name": "\\ud800"}')]),
    (
        '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
        [Content('<tool_call>{"name": "a", "arguments": [1]}</tool_call>')],
    ),
    (
        f'<tool_call>{{"name": "a", "arguments": {{"b": x}}}}</tool_call>{_HERMES}',
        [
            CallBegun("a"),
            Arguments('{"b": '),
            CallBroken('<tool_call>{"name": "a", "arguments": {"b": '),
            Content("x}}</tool_call>"),
            *call(),
        ],
    ),
    (
        '<tool_call>{"name": "a", "arguments": {"b": 1',
        [
            CallBegun("a"),
            Arguments('{"b": 1'),
            CallBroken('<tool_call>{"name": "a", "arguments": {"b": 1'),
        ],
    ),
]

SAMPLES: list[tuple[ToolFormatName, str, list[Event]]] = [
    (ToolFormatName.HERMES, text, events) for text, events in HERMES
]
